"""A linear classifier on the global model's frozen representations, trained on 10 % of the labels.

As `linear_probe`, with the labels of 10 % of the training samples: as many of every class, one at
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
class ProbeTen(Evaluator):
    """The global model with 10 % of the labels of the training set."""

    where = "server"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`probe_10` and `probe_10_labels`."""
        return probe(net, data, seed, "probe_10", share=0.1)
