"""What a tracking tool is told about a run: the interface of `coterie/sinks` and of own ones."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from coterie.engine.record import RoundEvent

Status = Literal["finished", "interrupted", "failed"]
PROJECT = "coterie"  # the name under which tools group runs


@dataclass(frozen=True)
class TrackedRun:
    """A run that is about to start, or to resume."""

    folder: Path  # its directory; what a tool stores goes into a folder of its own in there
    config: Mapping[str, Mapping[str, Any]]  # the resolved tables
    history: Sequence[RoundEvent]  # the rounds before `first`, all of them committed
    first: int  # its next round, counted from 0
    total: int
    online: bool  # `record.online`: whether anything may leave this machine

    @property
    def name(self) -> str:
        """The name of the run: that of its directory."""
        return self.folder.name

    @property
    def tags(self) -> dict[str, str]:
        """The method, objective and data of the run."""
        return {table: str(self.config[table]["name"]) for table in ("method", "objective", "data")}

    def parameters(self) -> dict[str, str | int | float]:
        """Flatten the configuration to `table.key`; lists and tables in it become JSON."""
        return {
            f"{table}.{key}": value if isinstance(value, str | int | float) else json.dumps(value)
            for table, values in self.config.items()
            for key, value in values.items()
        }


class Sink(ABC):
    """A tracking tool that follows a run, in a process of its own.

    Whatever it raises is one note of the run, and it is told nothing more.
    """

    modules: ClassVar[tuple[str, ...]] = ()  # that must be installed
    extra: ClassVar[str] = ""  # of Coterie, which installs them

    def environment(self, run: TrackedRun) -> Mapping[str, str | None]:
        """Return variables to set before the tool is imported; None removes one."""
        return {}

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Begin to track a run, or continue; rounds from `run.first` on come again."""

    @abstractmethod
    def round(self, event: RoundEvent) -> None:
        """Store a finished round."""

    def end(self, status: Status) -> None:
        """Store how the run ended, and whatever is not stored yet."""


def list_values(event: RoundEvent) -> dict[str, float]:
    """List the numbers of a round: its metrics, bytes, seconds and clients."""
    missing = len(event.lost) + len(event.rejected)
    return {
        **event.metrics,
        "bytes_up": event.bytes_up,
        "bytes_down": event.bytes_down,
        "seconds": event.seconds,
        "clients": len(event.cohort) - missing,
    }
