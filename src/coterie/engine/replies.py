"""The replies of one round: who answered, which replies are valid, what they measured and cost."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping

from coterie.core.bundle import Payload
from coterie.core.errors import CheckpointError
from coterie.core.task import ClientId, Reply, Round
from coterie.engine.cohort import Invited
from coterie.engine.record import ClientEvent, Recorders
from coterie.kit.aggregate import Screen

TRAINED = "train_"  # begins the metrics of clients
_LOST = {"before": "dropped before the round", "after": "its upload was lost"}


def combine_digests(states: Mapping[ClientId, tuple[int, str]]) -> str:
    """Compute one digest of the saved states of all clients."""
    return hashlib.sha256(json.dumps(sorted(states.items())).encode()).hexdigest()


class Replies:
    """Screens the replies of a round and adds up what its event will say."""

    def __init__(self, round: Round, invited: Invited, recorders: Recorders) -> None:
        self.round, self.recorders = round, recorders
        self._dropped, self.asked = invited.lost, invited.asked
        self.lost = {str(c): _LOST[when] for c, when in invited.lost.items() if when == "before"}
        self.rejected: dict[str, str] = {}
        self.valid: list[ClientId] = []
        self.states: dict[ClientId, tuple[int, str]] = {}
        self.server_metrics: dict[str, float] = {}
        self.trouble = "nobody was invited"  # why there is no new state, if not because of clients
        self.seconds: dict[ClientId, float] = {}  # of every client that answered
        self.bytes_up = 0
        self._bytes_broadcast = self._bytes_own = 0
        self._diverged = 0
        self._sums: dict[str, tuple[float, int]] = {}  # name -> weighted sum, samples behind it

    def screen(self, replies: Iterator[Reply], down: Payload, screen: Screen) -> Iterator[Reply]:
        """Yield the replies that may be aggregated; record the reason for each other one."""
        size = down.nbytes()
        for done, reply in enumerate(replies, start=1):
            self._bytes_broadcast += size
            if self._keep(reply, screen):
                yield reply
            self.recorders.emit(
                ClientEvent(self.round.index, self.round.total, done, len(self.asked))
            )

    def count_own(self, own: Payload | None) -> None:
        """Count what is sent to one client alone; called where tasks are made, one at a time."""
        self._bytes_own += own.nbytes() if own is not None else 0

    @property
    def bytes_down(self) -> int:
        """All that was sent to clients."""
        return self._bytes_broadcast + self._bytes_own

    def _keep(self, reply: Reply, screen: Screen) -> bool:
        client = str(reply.client)
        self.seconds[reply.client] = reply.seconds
        if reply.state:
            self.states[reply.client] = (self.round.index, reply.state)
        if reply.error is not None:
            if reply.error.kind == "disk":
                raise CheckpointError(reply.error.reason)
            if reply.error.kind == "refused":  # what the screen says of it where it was decoded
                self._refuse(reply, reply.error.reason, reply.error.nbytes)
                return False
            reason = f"{reply.error.kind}: {reply.error.reason}"
            no_answer = reply.error.kind in ("lost", "late", "skipped")
            (self.lost if no_answer else self.rejected)[client] = reason
            self._diverged += reply.error.kind == "diverged"
            if reply.error.trace:
                self.recorders.note(f"client {client} {reason}", trace=reply.error.trace)
            return False
        if self._dropped.get(reply.client) == "after":
            self.lost[client] = _LOST["after"]
            return False
        if problem := screen.problem(reply):
            self._refuse(reply, problem, reply.up.nbytes())
            return False
        self.bytes_up += reply.up.nbytes()
        self.valid.append(reply.client)
        for name, value in reply.metrics.items():
            if not (isinstance(value, float) and math.isfinite(value)):
                self.note(f"client {client} measured {name} = {value!r}, which is left out")
                continue
            total, samples = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + reply.examples * value, samples + reply.examples)
        return True

    def _refuse(self, reply: Reply, reason: str, nbytes: int) -> None:
        """Record an upload that may not be aggregated; unless it was lost, it was sent."""
        client = str(reply.client)
        if self._dropped.get(reply.client) == "after":
            self.lost[client] = _LOST["after"]
        else:
            self.rejected[client] = reason
            self.bytes_up += nbytes

    def metrics(self) -> dict[str, float]:
        """Average each metric by samples over the clients that measured it; add the server's."""
        means = {
            f"{TRAINED}{name}": total / samples for name, (total, samples) in self._sums.items()
        }
        return means | {f"server_{name}": value for name, value in self.server_metrics.items()}

    def all_diverged(self) -> bool:
        """Whether some clients diverged and no reply was valid."""
        return self._diverged > 0 and not self.valid

    def first_problem(self) -> str:
        """Return one of the recorded reasons, as an example."""
        reasons = {**self.rejected, **self.lost}
        return next((f"client {c}: {why}" for c, why in reasons.items()), self.trouble)

    def note(self, text: str) -> None:
        """Send the user a message about this round."""
        self.recorders.note(f"round {self.round.index + 1}: {text}")
