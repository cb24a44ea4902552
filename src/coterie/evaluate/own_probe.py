"""A linear classifier on every client's own encoder, trained on that client's labels alone.

As `personal_probe`, with only what a client has itself: its training data and its test data. It
works wherever the data are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from coterie.core.task import ClientId
from coterie.evaluate.shared.features import over_clients
from coterie.evaluate.shared.head import probe
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class OwnProbe(Evaluator):
    """Every client's model with the client's own labels, on its test data."""

    where = "client"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`own_probe` and `labels` of one client."""
        found = probe(net, data, seed)
        return {"own_probe": found["probe"], "labels": found["probe_labels"]} if found else {}

    def summarise(self, found: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        """Mean, spread and worst decile over the clients, and their mean number of labels."""
        return over_clients(found, "own_probe", "labels")
