"""Weighted kNN on every client: its own model, training data as the bank, test data.

As `knn`, with each client's personal model where it has one, else the global one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from coterie.core.task import ClientId
from coterie.evaluate.knn import neighbours
from coterie.evaluate.shared.features import over_clients
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class PersonalKnn(Evaluator):
    """Every client's model with its own bank, on its own test data."""

    where = "client"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`knn` and `bank` of one client."""
        found = neighbours(net, data)
        return {"knn": found["knn"], "bank": found["knn_bank"]} if found else {}

    def summarise(self, found: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        """Mean, spread and worst decile over the clients, and the mean bank."""
        return over_clients(found, "knn", "bank")
