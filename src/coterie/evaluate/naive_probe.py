"""One linear classifier over the clients' own encoders, trained by FedAvg: a diagnostic.

The clients' representations need not lie in one space, so that one classifier for all of them says
little about the encoders (He et al., SSFL, 2021, section 5.4.3 and Figure 6). As `federated_probe`,
but every client uses its personal model where it has one, and the result is the mean over clients
of the accuracy on their own test data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from coterie.core.bundle import ServerState
from coterie.evaluate.shared.program import ROUNDS, SharedHead
from coterie.kit.context import ServerContext


@final
@dataclass(frozen=True)
class NaiveProbe(SharedHead):
    """One classifier over many encoders."""

    own_models: ClassVar[bool] = True

    rounds: int = ROUNDS

    def finish(self, ctx: ServerContext, server: ServerState) -> Mapping[str, float]:
        """`naive_probe` and `naive_probe_labels`."""
        found = server["found"]
        tested = found["tests"] > 0
        shares = found["right"][tested].double() / found["tests"][tested]
        labels = float(found["labels"].sum())
        return {"naive_probe": float(shares.mean()), "naive_probe_labels": labels}
