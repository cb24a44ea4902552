"""The rounds of a run, as a sequence of events and as series of metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from coterie.core import registry
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.formatting import counted
from coterie.engine.record import MetricsFile, RoundEvent

METRICS = "metrics.jsonl"
Series = list[tuple[int, float]]  # rounds, counted from 0, and values


@dataclass(frozen=True, repr=False)
class History(Sequence[RoundEvent]):
    """The rounds of a run in order; `history["accuracy"]` is the course of a metric."""

    events: tuple[RoundEvent, ...] = ()
    metric: str = "accuracy"  # that a run is judged by

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, key: int) -> RoundEvent: ...
    @overload
    def __getitem__(self, key: slice) -> "History": ...
    @overload
    def __getitem__(self, key: str) -> Series: ...
    def __getitem__(self, key: int | slice | str) -> "RoundEvent | History | Series":
        if isinstance(key, str):
            return self._series(key)
        if isinstance(key, slice):
            return History(self.events[key], self.metric)
        return self.events[key]

    def __repr__(self) -> str:
        if not self.events:
            return "History(no rounds)"
        last = self.events[-1].metrics.get(self.metric)
        measured = "" if last is None else f", {self.metric} {last:.3f} after the last"
        return f"History({counted(len(self), 'round')}{measured})"

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that were measured in some round."""
        return tuple(sorted({name for event in self.events for name in event.metrics}))

    def _series(self, name: str) -> Series:
        if name not in self.names:
            listed = ", ".join(self.names) or "none"
            hint = registry.nearest(name, self.names) or f"; there are: {listed}"
            raise ConfigError(f"the metric {name!r} was not measured{hint}")
        return [(e.round, e.metrics[name]) for e in self.events if name in e.metrics]


def read_history(folder: Path, metric: str) -> History:
    """Read the finished rounds of a run; a line that is being written is left out."""
    path = folder / METRICS
    try:
        complete = path.read_bytes().rfind(b"\n") + 1
    except FileNotFoundError:
        return History((), metric)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    return History(tuple(MetricsFile(path).read(complete)), metric)
