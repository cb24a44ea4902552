"""Accuracy on every client's own test data, of its personal model where it has one.

Each client tests on its part of the test set, which was dealt by the clients' shares of each
class's training samples. Reported over clients, each counting once: the mean, the standard
deviation, and the mean of the worst tenth (at least one client).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.core.task import ClientId
from coterie.evaluate.accuracy import classify
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class Personal(Evaluator):
    """Every client's model on that client's test data."""

    where = "client"
    needs = ("classifier",)

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`accuracy` and `loss` of one client."""
        return classify(net, data)

    def summarise(self, found: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        """Mean, spread and worst decile over the clients."""
        accuracies = np.sort([metrics["accuracy"] for metrics in found.values()])
        losses = [metrics["loss"] for metrics in found.values()]
        worst = max(1, len(accuracies) // 10)
        return {
            "client_accuracy_mean": float(accuracies.mean()),
            "client_accuracy_std": float(accuracies.std()),
            "client_accuracy_worst_decile": float(accuracies[:worst].mean()),
            "client_loss_mean": float(np.mean(losses)),
        }
