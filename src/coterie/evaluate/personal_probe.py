"""A linear classifier on every client's own encoder, trained on all labels of the simulation.

The protocol of personalised SSFL (He et al., 2021, section 4): for every client's model the
classifier is trained on the *whole* training set and tested on that client's own test data. Real
clients have no such set: only a simulation can do this, and data of sites are refused. A client
whose samples are shifted (noise, rotation, style, other labels) sees the whole set that way.
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
class PersonalProbe(Evaluator):
    """Every client's model with all labels, on that client's test data."""

    where = "client"
    pools = True

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`probe` and `labels` of one client."""
        found = probe(net, data, seed)
        return {"probe": found["probe"], "labels": found["probe_labels"]} if found else {}

    def summarise(self, found: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        """Mean, spread and worst decile over the clients, and the labels of each."""
        return over_clients(found, "probe", "labels")
