"""A linear classifier on the global model's frozen representations, trained on all labels.

Trained on the server on the whole training set, tested on the global test set. How it is trained is
in `evaluate/shared/head.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from coterie.evaluate.shared.head import probe
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class LinearProbe(Evaluator):
    """The global model with every label of the training set."""

    where = "server"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`probe` and `probe_labels`."""
        return probe(net, data, seed)
