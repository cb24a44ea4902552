"""Events of a run: one per round in `metrics.jsonl`, and all of them to every recorder."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from coterie.core import files
from coterie.core.errors import CheckpointError
from coterie.core.files import disk_errors, replace_durably
from coterie.engine.in_place import open_in_place

Confusion = Sequence[Sequence[int]]
_OF_SOME_ROUNDS = ("unseen", "confusion", "recall", "client_confusion")


@dataclass(frozen=True)
class RoundEvent:
    """A finished round; one line of `metrics.jsonl`."""

    round: int
    stage: str
    cohort: Sequence[int]
    lost: Mapping[str, str]  # client -> reason; not asked, or no reply
    rejected: Mapping[str, str]  # client -> reason; a reply that cannot be used
    skipped: bool
    metrics: Mapping[str, float]
    bytes_up: int
    bytes_down: int
    evaluation_bytes_up: int
    evaluation_bytes_down: int
    seconds: float
    digest: str  # of the server's state
    states: str  # of the clients' states
    clients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What was measured on each client, by its name and by metric."""
    unseen: Sequence[str] = ()  # those of `clients` that never train
    confusion: Confusion = ()  # of the last round; rows: true class, columns: predicted
    recall: Mapping[str, float] = field(default_factory=dict)  # by class, from `confusion`
    client_confusion: Mapping[str, Confusion] = field(default_factory=dict)  # by name

    def line(self) -> str:
        """Return the event as a JSON line, without what only some rounds have."""
        values = asdict(self).items()
        return json.dumps({k: v for k, v in values if v or k not in _OF_SOME_ROUNDS}) + "\n"

    def outline(self) -> "RoundEvent":
        """Leave out who took part and what was measured by client: later rounds need neither."""
        return replace(
            self, cohort=[], lost={}, rejected={}, clients={}, unseen=(), client_confusion={}
        )

    @classmethod
    def parse(cls, line: str) -> "RoundEvent":
        """Parse what `line` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class StartEvent:
    """The run is about to start, or to resume."""

    folder: Path
    clients: int
    first: int  # its first round
    total: int
    metric: str = "accuracy"  # that the run is judged by
    data: str = ""  # what they were taken for
    baseline: str = ""  # the metric before training, in words; "" if unknown, or resumed


@dataclass(frozen=True)
class ClientEvent:
    """One more client of the current round has answered."""

    round: int
    total: int
    done: int
    cohort: int
    activity: str = "training"


@dataclass(frozen=True)
class NoteEvent:
    """A message for the user."""

    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


Event = StartEvent | RoundEvent | ClientEvent | NoteEvent
Recorder = Callable[[Event], None]


class Recorders:
    """All recorders of a run."""

    def __init__(self, recorders: Iterable[Recorder] = ()) -> None:
        self._recorders = tuple(recorders)

    def emit(self, event: Event) -> None:
        """Pass an event to every recorder."""
        for record in self._recorders:
            record(event)

    def note(self, text: str, **details: Any) -> None:
        """Pass a message for the user to every recorder."""
        self.emit(NoteEvent(text, details))


class MetricsFile:
    """`metrics.jsonl`: appended after every round, synced at every commit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, committed: int | None = None) -> list[RoundEvent]:
        """Read the events so far, or those in the first `committed` bytes."""
        if not self.path.exists():
            return []
        data = files.read(self.path)[:committed]
        try:
            return [RoundEvent.parse(line) for line in data.decode().splitlines()]
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error

    def restore(self, committed: bytes) -> bool:
        """Bring the file back to its committed lines; return whether these were damaged."""
        try:
            damaged = self.path.read_bytes()[: len(committed)] != committed
        except OSError:  # it is missing, or the disk fails there
            damaged = True
        if damaged and committed:
            replace_durably(self.path, committed)
            return True
        self.truncate(len(committed))
        return False

    def truncate(self, committed: int) -> None:
        """Remove the lines of rounds that were never committed."""
        with disk_errors(self.path), open_in_place(self.path) as file:
            files.truncate(file, committed)

    def append(self, event: RoundEvent) -> None:
        """Append an event."""
        line = event.line().encode()
        with disk_errors(self.path, len(line)), open_in_place(self.path) as file:
            files.write(file, line)

    def sync(self, lines: int) -> tuple[int, str]:
        """Truncate to the first lines and sync them; return their length and SHA-256."""
        with disk_errors(self.path), open_in_place(self.path) as file:
            file.seek(0)
            digest, size = hashlib.sha256(), 0
            for line in islice(file, lines):  # never all of them in memory
                digest.update(line)
                size += len(line)
            files.truncate(file, size)
            files.sync(file.fileno())
        return size, digest.hexdigest()


def recall_by_class(confusion: Confusion) -> list[float | None]:
    """Compute which share of each class's samples is recognised; None for a class without any."""
    return [row[own] / sum(row) if sum(row) else None for own, row in enumerate(confusion)]


def reached(history: Sequence[RoundEvent], metric: str, target: float) -> RoundEvent | None:
    """Return the first round in which a metric reached a target."""
    return next((e for e in history if e.metrics.get(metric, float("-inf")) >= target), None)


def bytes_until(history: Sequence[RoundEvent], last: RoundEvent) -> int:
    """Count the bytes sent both ways up to and including a round, without evaluation."""
    return sum(e.bytes_up + e.bytes_down for e in history if e.round <= last.round)
