"""The front door for writers of methods, objectives and evaluators.

    from coterie.kit import Batch, Bundle, ClientContext, Loss, Method, fields, losses, stock, train

gives the contract, the local loop, and modules of ready-made pieces: `fields` (types of
hyper-parameters), `losses` (all of them), `self_supervised` (signs of a collapse), `stock`
(functions that fill slots), `personal`, `prototypes`, `clustering`, `server_training`, `seeds`,
`accounting` (the epsilon of private rounds).
Where a file needs many names, the rare ones are `kit.Sum()` and the like, after `from coterie
import kit`.
"""

from coterie.core import fields, seeds
from coterie.core.batch import Batch
from coterie.core.bundle import Blob, Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.errors import ConfigError, Diverged, NoReplies
from coterie.core.settings import Local, NormKind
from coterie.core.task import ClientId, Reply, Round
from coterie.data.heterogeneity import class_imbalance
from coterie.kit import (
    accounting,
    clustering,
    losses,
    personal,
    prototypes,
    self_supervised,
    server_training,
    stock,
)
from coterie.kit.builder import Builder
from coterie.kit.context import ClientContext, ServerContext, Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.local import Stepper, parameters, pull_towards, train
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.networks import Frozen, Nets, References
from coterie.kit.objective import Loss, Objective
from coterie.kit.pairs import PairPool, Pairs
from coterie.kit.rules import Array, Entry, Gather, Mean, Rule, Rules, Sum
from coterie.kit.stages import Answer, Replies, Stage, State, resolve, split, trim
from coterie.nets.build import Backbone
from coterie.nets.heads import (
    Network,
    Outputs,
    TargetNetwork,
    follow,
    make_classifier,
    mlp_head,
    moon_projector,
)

# fmt: off
__all__ = [
    "Answer", "Array", "Backbone", "Batch", "Blob", "Builder", "Bundle", "ClientContext",
    "ClientId", "ClientState", "ConfigError", "Diverged", "Entry", "Evaluator",
    "FederatedEvaluator", "Frozen", "Gather", "Local", "Loss", "Mean", "Method", "Nets", "Network",
    "NoReplies", "NormKind", "Objective", "Outputs", "PairPool", "Pairs", "Payload", "References",
    "Replies", "Reply", "Round", "Rule", "Rules", "ServerContext", "ServerState", "Shard", "Stage",
    "State", "Stepper", "Sum", "TargetNetwork", "Tensors", "accounting", "class_imbalance",
    "clustering",
    "fields", "follow", "losses", "make_classifier", "mlp_head", "moon_projector", "parameters",
    "personal", "prototypes", "pull_towards", "resolve", "seeds", "self_supervised",
    "server_training", "split", "stock", "train", "trim",
]
# fmt: on
