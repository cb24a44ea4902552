"""Reads the files of a run directory, checked as far as the page needs it."""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from coterie.core.errors import CheckpointError, CoterieError, DataError
from coterie.engine.record import RoundEvent

_T = TypeVar("_T")
_KINDS: dict[type | tuple[type, ...], tuple[str, ...]] = {  # the fields of a round
    int: ("round", "bytes_up", "bytes_down", "evaluation_bytes_up", "evaluation_bytes_down"),
    str: ("stage", "digest", "states"),
    (list, tuple): ("cohort", "confusion", "unseen"),
    dict: ("lost", "rejected", "metrics", "clients", "recall", "client_confusion"),
    (int, float): ("seconds",),
}


@dataclass(frozen=True)
class Holder:
    """The samples that one client holds."""

    name: str
    train: int
    test: int
    classes: tuple[int, ...]  # training samples by class
    id: int = -1  # in `embedding.npz`


@dataclass(frozen=True)
class PartitionSummary:
    """The contents of `partition.json`."""

    dataset: str
    digest: str
    classes: tuple[str, ...]  # their names
    clients: tuple[Holder, ...]
    heterogeneity: Mapping[str, float]


@dataclass(frozen=True)
class Run:
    """The contents of a run directory."""

    folder: Path
    config: Mapping[str, Any]
    partition: PartitionSummary
    history: tuple[RoundEvent, ...]
    notes: tuple[str, ...]  # what was left out, in sentences
    baseline: Mapping[str, float] = field(default_factory=dict)  # of `baseline_metric`
    baseline_metric: str = ""
    leaves: str = ""  # what leaves a client, in words; "": the run is of an older version
    environment: Mapping[str, str] = field(default_factory=dict)  # versions and machine

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of the configuration, empty where there is none."""
        return _as_table(self.config.get(name))

    def choice(self, name: str) -> str:
        """Return what a table of the configuration chooses, for example which method."""
        table = self.table(name)
        return next((str(table[k]) for k in ("kind", "name", "backbone") if k in table), "")


def read_run(folder: Path) -> Run:
    """Read `config.toml`, `partition.json`, `metrics.jsonl`, and what else there is."""
    config = _read(folder / "config.toml", tomllib.loads, DataError)
    partition = _read(folder / "partition.json", _parse_partition, DataError)
    history, notes = _read(folder / "metrics.jsonl", _parse_metrics, CheckpointError)
    run = Run(folder, config, partition, history, notes)
    baseline = _read_optional(folder / "baseline.json")
    leaves = _read_optional(folder / "model.json").get("leaves")
    saved = sorted(folder.glob("checkpoints/round_*/state.json"))
    environment = _read_optional(saved[-1]).get("environment") if saved else None
    return replace(
        run,
        baseline={k: v for k, v in _as_table(baseline.get("values")).items() if _is_number(v)},
        baseline_metric=str(baseline.get("metric", "")),
        leaves=leaves if isinstance(leaves, str) else "",
        environment={k: str(v) for k, v in _as_table(environment).items()},
    )


def _read_optional(path: Path) -> Mapping[str, Any]:
    """Read a JSON file that only adds to the page; empty if it is missing or broken."""
    try:
        return _as_table(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def _as_table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path, parse: Callable[[str], _T], kind: type[CoterieError]) -> _T:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror or error}") from error
    except KeyError as error:
        raise kind(f"{path} cannot be used: the key {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise kind(f"{path} cannot be used: {reason}") from error


def _parse_partition(text: str) -> PartitionSummary:
    content = json.loads(text)
    count = int(content["classes"])
    classes = tuple(map(str, content.get("class_names", range(count))))
    if len(classes) != count:
        raise ValueError(f"class_names has {len(classes)} names for {count} classes")
    clients = tuple(make_holder(row, at) for at, row in enumerate(content["clients"]))
    for name, counts in ((client.name, len(client.classes)) for client in clients):
        if counts != count:
            raise ValueError(f"client {name!r} counts {counts} classes, not {count}")
    names = str(content["dataset"]), str(content["digest"])
    return PartitionSummary(*names, classes, clients, _finite(content.get("heterogeneity") or {}))


def make_holder(row: Mapping[str, Any], position: int) -> Holder:
    """Make a client of its row in `partition.json`; without a number its position is its number."""
    counts = tuple(map(int, row["classes"]))
    number = int(row.get("id", position))
    return Holder(str(row["name"]), int(row["train"]), int(row["test"]), counts, number)


def _parse_metrics(text: str) -> tuple[tuple[RoundEvent, ...], tuple[str, ...]]:
    """Parse the rounds; unlike `MetricsFile`, skip a last line that is not complete yet."""
    history: list[RoundEvent] = []
    notes: list[str] = []
    dropped = 0
    for number, line in enumerate(lines := text.splitlines(), start=1):
        try:
            event = RoundEvent.parse(line)
            _check(event)
            usable = _finite(event.metrics)
        except (ValueError, TypeError) as error:
            if history and number == len(lines) and not text.endswith("\n"):
                notes.append("The last line of metrics.jsonl is incomplete and was left out.")
                break
            raise ValueError(f"line {number}: {error}") from error
        dropped += len(event.metrics) - len(usable)
        history.append(replace(event, metrics=usable))
    if not history:
        raise ValueError("it holds no finished round yet")
    if dropped:
        notes.append(f"{dropped:,} values that are not finite numbers were left out.")
    return tuple(history), tuple(notes)


def _check(event: RoundEvent) -> None:
    """Refuse a round whose values could not be drawn."""
    for kind, names in _KINDS.items():
        for name in names:
            if not isinstance(value := getattr(event, name), kind):
                raise ValueError(f"{name} is {value!r}")
    if not math.isfinite(event.seconds):
        raise ValueError(f"seconds is {event.seconds!r}")


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {k: number for k, v in values.items() if math.isfinite(number := float(v))}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
