"""Weighted kNN of the global model's projections z, on the global test set.

As `knn`, behind the projector instead of before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from coterie.evaluate.knn import neighbours
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class ProjectionKnn(Evaluator):
    """The global model's z, all training samples as the bank."""

    where = "server"
    needs = ("projector",)

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`projection_knn` and `projection_knn_bank`."""
        return neighbours(net, data, "projection_knn", "z")
