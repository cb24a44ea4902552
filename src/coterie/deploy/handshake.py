"""What server and client tell each other before the first task, and why one refuses the other.

Both ends check: the version of the protocol, the versions of Coterie and torch, the configuration
(a hash over all that decides what a client computes) and the schema of the networks (a hash over
the name, shape and dtype of every tensor). Before a client reads its data it learns what the server
will learn of them, and ends its part if its operator denies that.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import coterie
from coterie.core.errors import ConfigError
from coterie.deploy.columns import describe_sent
from coterie.engine.spec import Parts
from coterie.experiment.config import Config, resolve
from coterie.experiment.load_data import read_options
from coterie.experiment.settle import use_groups
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator
from coterie.kit.stages import Stage
from coterie.kit.stages import resolve as resolve_stages

PROTOCOL = 2
SIZES, CLASSES, SCORES, CONFUSION = "sizes", "classes", "scores", "confusion"
COLUMNS = "columns"
_OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_SITE = {"name": "sites", "root": "", "test": "", "site": ""}  # of [data]: each has its own
_FOR_SIMULATIONS = {"holdout": 0.0, "limit": 0, "imbalance": 1.0}


class Declined(Exception):
    """One end of a handshake does not take part, for this reason."""


@dataclass(frozen=True)
class Terms:
    """What a server asks of its clients."""

    config: Config
    learns: Mapping[str, str]  # what the server learns of a client: a word, and a description
    classes: tuple[int | str, ...] = ()  # if the server states them

    def to_plain(self) -> dict[str, Any]:
        """Write them for the head of a message."""
        return {
            "protocol": PROTOCOL,
            "versions": list_versions(),
            "config": self.config.tables,
            "config_hash": self.config.hash(),
            "learns": dict(self.learns),
            "stated": list(self.classes),
        }


def list_versions() -> dict[str, str]:
    """List the versions that have to be equal for equal bits."""
    # builds of one torch version for several machines differ behind the plus sign
    return {"coterie": coterie.__version__, "torch": torch.__version__.partition("+")[0]}


def make_common(config: Config) -> Config:
    """Leave out of a configuration what each site has of its own; refuse what only simulations do.

    Both ends make it before they compare hashes. A precision that was chosen for one machine is
    float32 for all, which every site has.
    """
    for key, default in _FOR_SIMULATIONS.items():
        if (value := getattr(config.data, key)) != default:
            raise ConfigError(
                f"data.{key} = {value} is for data that Coterie divides; leave it out, sites "
                "choose their own"
            )
    if config.method.pooled:
        name = config.tables["method"]["name"]
        raise ConfigError(f"method.name = {name!r} pools the data of all sites: choose another")
    if config.record.embedding not in (0, "auto"):
        raise ConfigError(
            "record.embedding shows training samples, which stay at their sites: leave it out"
        )
    if config.objects:
        raise ConfigError(f"{', '.join(config.objects)}: no other machine has these objects")
    if config.net.weights and (config.method.draws_fresh or config.net.bn_buffers == "local"):
        raise ConfigError(
            "net.weights is a file of the server, and clients would need it too for weights or "
            "statistics of their own: leave it out"
        )
    grouped = use_groups(config).update("data", **_OF_SITE).update("run", device="cpu")
    precision = "fp32" if config.precision_chosen else config.net.precision
    # weights come with the first task
    return grouped.update("net", weights="", weights_sha256="", precision=precision)


def list_learned(
    config: Config, stated: Collection[int | str] = (), table: bool = False
) -> dict[str, str]:
    """List what the server learns of each client's data, by the words that `--deny` takes.

    The data are samples, or a `table` with named columns.
    """
    learned = {SIZES: "its numbers of training and test samples"}
    if not stated:
        learned[CLASSES] = "the names of the classes that it has"
    if table:
        learned[COLUMNS] = describe_sent(read_options(config.data))
    for stage in resolve_stages(config.method, config.run.rounds):
        learned |= _list_uploads(stage, "")
    for key, part in config.evaluators.items():
        if isinstance(part, FederatedEvaluator):
            for stage in resolve_stages(part, part.rounds):
                learned |= _list_uploads(stage, f" of the evaluator {key!r}")
        elif part.where == "client":
            learned[SCORES] = "what evaluators measure on its test samples"
            if type(part).confusion is not Evaluator.confusion:
                learned[CONFUSION] = "how many test samples of each class were taken for which"
    return learned


def _list_uploads(stage: Stage, owner: str) -> dict[str, str]:
    if stage.cohort == "none":
        return {}
    where = f"in the stage {stage.name!r}{owner}"
    groups = dict.fromkeys(stage.uploads or (), f"tensors, {where}")
    return groups | dict.fromkeys(stage.arrays, f"an array with a row for every sample, {where}")


def hash_schema(parts: Parts) -> str:
    """Hash the names, shapes and dtypes of all networks of a method."""
    nets = parts.nets("method")
    schema = {
        key: [[name, list(t.shape), str(t.dtype)] for name, t in nets[key].state_dict().items()]
        for key in nets
    }
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()


def check_terms(
    head: Mapping[str, Any],
    deny: Collection[str],
    own_code: bool,
    agreed: str = "",
    table: bool = False,
) -> Terms:
    """Check on a client what a server asks for; `Declined` says why it takes no part.

    `agreed` is the hash of the configuration that the client's operator expects, if any. `table`
    says that the client has one.
    """
    if head.get("protocol") != PROTOCOL:
        raise Declined(f"the server speaks protocol {head.get('protocol')}, this client {PROTOCOL}")
    theirs, ours = head.get("versions"), list_versions()
    for name, version in ours.items():
        other = theirs.get(name) if isinstance(theirs, dict) else None
        if other != version:
            raise Declined(f"the server has {name} {other}, this client {version}")
    tables = head.get("config")
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise Declined("the server sent no configuration")
    if not own_code and (name := _find_own_code(tables)):
        raise Declined(f"the configuration names code that is not Coterie's ({name}): --own-code")
    try:
        config = make_common(resolve(tables, name="sites"))
    except ConfigError as error:
        raise Declined(f"the server's configuration cannot be used here: {error}") from error
    if config.hash() != head.get("config_hash"):
        raise Declined("the server's configuration does not have the hash that it claims")
    if agreed and config.hash() != agreed:
        raise Declined("the server has another configuration than the one given with --config")
    stated = head.get("stated")
    if not isinstance(stated, list) or any(type(name) not in (int, str) for name in stated):
        raise Declined("the server sent no list of classes")
    # what leaves this client follows from the configuration, not from what the server says of it
    learns = list_learned(config, stated, table)
    if denied := [word for word in learns if word in deny]:
        told = ", ".join(f"{word} ({learns[word]})" for word in denied)
        raise Declined(f"its operator denies {told}")
    return Terms(config, learns, tuple(stated))


def _find_own_code(value: Any) -> str:
    """Find a name such as `package.module:Class`, which a configuration can have imported."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return next(filter(None, map(_find_own_code, value)), "")
    return value if isinstance(value, str) and _OWN_CODE.fullmatch(value) else ""
