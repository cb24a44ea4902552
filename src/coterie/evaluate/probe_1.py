"""A linear classifier on the global model's frozen representations, trained on 1 % of the labels.

As `linear_probe`, with the labels of 1 % of the training samples: as many of every class, one at
least. They are drawn by the seed of the run and are the same in every round.
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
class ProbeOne(Evaluator):
    """The global model with 1 % of the labels of the training set."""

    where = "server"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`probe_1` and `probe_1_labels`."""
        return probe(net, data, seed, "probe_1", share=0.01)
