"""What is compared of runs: mean and spread of every row over its seeds."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.core.formatting import MEGABYTE
from coterie.report.chart import History
from coterie.report.curves import list_own
from coterie.report.spread import Spread, make_spread
from coterie.report.summary import make_headline

ROUNDS, MEGABYTES, SECONDS = "rounds", "megabytes", "seconds_a_round"
MISSING = "-"
_ACCURACY = ("client_accuracy_mean", "client_accuracy_worst_decile")  # whatever the metric is
_HEADS = {ROUNDS: "rounds", MEGABYTES: "MB"}


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


FINAL, BEST = SummaryColumn("final"), SummaryColumn("best")


@dataclass(frozen=True)
class SummaryRow:
    """The finished runs of one method or setting."""

    runs: int
    values: Mapping[SummaryColumn, Spread]

    def show(self, column: SummaryColumn) -> str:
        """Format mean and spread, and how many runs never reached a target."""
        value = self.values.get(column)
        if value is None:
            return MISSING
        digits = 4 if column.target is None else 1
        text = f"{value.mean:.{digits}f}"
        if self.runs > 1:
            text += f" ± {value.std or 0.0:.{digits}f}"
        missing = self.runs - value.runs
        return f"{text} ({missing} never)" if missing else text


Summary = Mapping[str, SummaryRow]


def measure(history: History, targets: Sequence[float], metric: str) -> dict[SummaryColumn, float]:
    """Collect what is compared of a run; a target that it did not reach is absent."""
    if not history:
        return {}
    last, head = history[-1].metrics, make_headline(history, targets, metric)
    values: dict[SummaryColumn, float] = {}
    if head.final and head.best:
        values |= {FINAL: head.final[0], BEST: head.best[0]}
    values |= {SummaryColumn(name): last[name] for name in _list_clients(metric) if name in last}
    for target in head.targets:
        if target.rounds is not None and target.bytes is not None:
            values[SummaryColumn(ROUNDS, target.value)] = float(target.rounds)
            values[SummaryColumn(MEGABYTES, target.value)] = target.bytes / MEGABYTE
    values[SummaryColumn(SECONDS)] = statistics.median(event.seconds for event in history)
    return values


def _list_clients(metric: str) -> list[str]:
    """List the metrics over clients: those of the metric, then those of the accuracy."""
    _, mean, _, worst = list_own(metric)
    return list(dict.fromkeys((mean, worst, *_ACCURACY)))


def summarise(runs: Iterable[tuple[str, Mapping[SummaryColumn, float]]]) -> dict[str, SummaryRow]:
    """Take mean and spread over what was measured of the runs of every row."""
    rows: dict[str, dict[SummaryColumn, list[float]]] = {}
    for row, measured in runs:
        columns = rows.setdefault(row, {})
        for column, value in measured.items():
            columns.setdefault(column, []).append(value)
    return {
        name: SummaryRow(
            runs=max(map(len, columns.values()), default=0),
            values={column: make_spread(values) for column, values in columns.items()},
        )
        for name, columns in rows.items()
    }


def list_columns(
    summary: Summary, targets: Sequence[float], metric: str
) -> Iterator[SummaryColumn]:
    """List what at least one row has, and every target."""
    measured = {column.name for row in summary.values() for column in row.values}
    names = (FINAL.name, BEST.name, *_list_clients(metric))
    yield from (SummaryColumn(name) for name in names if name in measured)
    for target in targets:
        yield from (SummaryColumn(what, target) for what in (ROUNDS, MEGABYTES))


def compare_times(summary: Summary) -> dict[str, float | None]:
    """Divide the seconds of a round by those of the first row that has any."""
    times = {name: row.values.get(SummaryColumn(SECONDS)) for name, row in summary.items()}
    base = next((time.mean for time in times.values() if time and time.mean), None)
    return {name: time.mean / base if time and base else None for name, time in times.items()}


def show_ratio(ratio: float | None) -> str:
    """Format a ratio of times."""
    return MISSING if ratio is None else f"{ratio:.2f}"
