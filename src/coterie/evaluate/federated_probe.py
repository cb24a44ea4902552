"""A linear classifier on the global model's frozen representations, trained by FedAvg.

No label leaves its client. The clients test the final classifier on their own test data, and all
right answers are counted over all test samples: the clients' test data together are the test set.
A method without a global model has no common encoder; each client then uses its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from coterie.core.bundle import ServerState
from coterie.evaluate.shared.program import ROUNDS, SharedHead
from coterie.kit.context import ServerContext


@final
@dataclass(frozen=True)
class FederatedProbe(SharedHead):
    """One classifier over the global encoder."""

    rounds: int = ROUNDS

    def finish(self, ctx: ServerContext, server: ServerState) -> Mapping[str, float]:
        """`federated_probe` and `federated_probe_labels`."""
        total = {name: int(counts.sum()) for name, counts in server["found"].items()}
        return {
            "federated_probe": total["right"] / total["tests"] if total["tests"] else float("nan"),
            "federated_probe_labels": float(total["labels"]),
        }
