"""The table of `coterie compare` and `coterie sweep`: mean and spread of every row, for people and
as JSON for programs.
"""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.formatting import MEGABYTE, TextTable
from coterie.core.settings import EvaluateSettings
from coterie.report.summary import make_headline
from coterie.reproduce.runs import Ended

_ROUNDS, _MEGABYTES, _SECONDS = "rounds", "megabytes", "seconds_a_round"
_FINAL = ("client_accuracy_mean", "client_accuracy_worst_decile")  # metrics of the last round
_HEADS = {_ROUNDS: "rounds", _MEGABYTES: "MB"}
_MISSING = "-"


@dataclass(frozen=True)
class SummaryColumn:
    """What is compared, by its name in JSON; of a target also its value."""

    name: str
    target: float | None = None

    @property
    def head(self) -> str:
        """The head of the column for people."""
        if self.target is None:
            return self.name.replace("_", " ")
        return f"{_HEADS[self.name]} to {self.target:g}"


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the runs that have a quantity."""

    mean: float
    std: float | None  # None with one run
    runs: int


@dataclass(frozen=True)
class SummaryRow:
    """The finished runs of one method or setting."""

    runs: int
    values: Mapping[SummaryColumn, Spread]

    def show(self, column: SummaryColumn) -> str:
        """Format mean and spread, and how many runs never reached a target."""
        value = self.values.get(column)
        if value is None:
            return _MISSING
        digits = 4 if column.target is None else 1
        text = f"{value.mean:.{digits}f}"
        if self.runs > 1:
            text += f" ± {value.std or 0.0:.{digits}f}"
        missing = self.runs - value.runs
        return f"{text} ({missing} never)" if missing else text


def summarise(runs: Iterable[Ended]) -> dict[str, SummaryRow]:
    """Take mean and spread over the finished runs of every row."""
    rows: dict[str, dict[SummaryColumn, list[float]]] = {}
    for ended in runs:
        columns = rows.setdefault(ended.trial.row, {})
        for column, value in measure(ended).items():
            columns.setdefault(column, []).append(value)
    return {
        name: SummaryRow(
            runs=max(map(len, columns.values()), default=0),
            values={column: _spread(values) for column, values in columns.items()},
        )
        for name, columns in rows.items()
    }


def _spread(values: Sequence[float]) -> Spread:
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def measure(ended: Ended) -> dict[SummaryColumn, float]:
    """Collect what is compared of a run; a target that it did not reach is absent."""
    if not ended.history:
        return {}
    settings, last = ended.trial.config.evaluate, ended.history[-1]
    head = make_headline(ended.history, settings.targets, settings.metric)
    values: dict[SummaryColumn, float] = {}
    if head.final and head.best:
        values |= {SummaryColumn("final"): head.final[0], SummaryColumn("best"): head.best[0]}
    values |= {SummaryColumn(name): last.metrics[name] for name in _FINAL if name in last.metrics}
    for target in head.targets:
        if target.rounds is not None and target.bytes is not None:
            values[SummaryColumn(_ROUNDS, target.value)] = float(target.rounds)
            values[SummaryColumn(_MEGABYTES, target.value)] = target.bytes / MEGABYTE
    values[SummaryColumn(_SECONDS)] = statistics.median(event.seconds for event in ended.history)
    return values


def make_table(summary: Mapping[str, SummaryRow], targets: Sequence[float]) -> TextTable:
    """Make the table: mean and spread over seeds, times as ratios to the first row."""
    columns = list(_list_columns(summary, targets))
    ratios = _compare_times(summary)
    lines = []
    for name, row in summary.items():
        ratio = ratios[name]
        cells = [row.show(column) for column in columns]
        lines.append([name, str(row.runs), *cells, _show_ratio(ratio)])
    heads = [column.head for column in columns]
    return TextTable("", ["", "runs", *heads, "time ratio"], lines)


def _list_columns(
    summary: Mapping[str, SummaryRow], targets: Sequence[float]
) -> Iterator[SummaryColumn]:
    """List what at least one row has, and every target."""
    measured = {column.name for row in summary.values() for column in row.values}
    yield from (SummaryColumn(name) for name in ("final", "best", *_FINAL) if name in measured)
    for target in targets:
        yield from (SummaryColumn(what, target) for what in (_ROUNDS, _MEGABYTES))


def _compare_times(summary: Mapping[str, SummaryRow]) -> dict[str, float | None]:
    """Divide the seconds of a round by those of the first row that has any."""
    times = {name: row.values.get(SummaryColumn(_SECONDS)) for name, row in summary.items()}
    base = next((time.mean for time in times.values() if time and time.mean), None)
    return {name: time.mean / base if time and base else None for name, time in times.items()}


def _show_ratio(ratio: float | None) -> str:
    return _MISSING if ratio is None else f"{ratio:.2f}"


def to_json(
    summary: Mapping[str, SummaryRow], settings: EvaluateSettings, runs: Iterable[Ended]
) -> bytes:
    """Encode the table: every number under a name in snake_case, beside the text that is shown."""
    ratios = _compare_times(summary)
    rows = [
        {
            "name": name,
            "runs": row.runs,
            **{c.name: _encode(row, c) for c in _list_columns(summary, ())},
            "targets": [
                {
                    "target": target,
                    **{
                        what: _encode(row, SummaryColumn(what, target))
                        for what in (_ROUNDS, _MEGABYTES)
                    },
                }
                for target in settings.targets
            ],
            _SECONDS: _encode(row, SummaryColumn(_SECONDS)),
            "time_ratio": {"value": ratios[name], "shown": _show_ratio(ratios[name])},
        }
        for name, row in summary.items()
    ]
    folders = [
        {
            "label": ended.trial.name,
            "row": ended.trial.row,
            "seed": ended.trial.config.run.seed,
            "folder": str(ended.trial.folder),
            "failure": str(ended.error) if ended.error else None,
        }
        for ended in runs
    ]
    document = {"metric": settings.metric, "rows": rows, "runs": folders}
    return f"{json.dumps(document, indent=1, ensure_ascii=False)}\n".encode()


def _encode(row: SummaryRow, column: SummaryColumn) -> dict[str, Any]:
    """Encode mean, spread and runs of a quantity; those of none are null."""
    value = row.values.get(column)
    numbers = (value.mean, value.std, value.runs) if value else (None, None, 0)
    return {**dict(zip(("mean", "std", "runs"), numbers, strict=True)), "shown": row.show(column)}
