"""Centralised training: all data in one place, the upper bound of the comparisons.

The partition is merged into one client that holds everything, then

    w = training of w on the union of the data

for `local.epochs` epochs a round, with a new optimiser in every round as everywhere. Simulation
only: it is what federated learning is there to avoid.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from coterie.kit import Method, stock


@final
@dataclass(frozen=True)
class Centralized(Method):
    """One client with all data. Works with any objective."""

    objectives = None
    pooled: ClassVar[bool] = True
    leaves: ClassVar[str] = "all its data (the clients are merged into one; simulation only)"

    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model
