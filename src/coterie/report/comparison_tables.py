"""Tables of rows of runs: what they reached, how they differ by seed, how they are set."""

from collections.abc import Iterator, Sequence

from coterie.core.formatting import list_first, shorten_middle
from coterie.report.comparison_words import list_finals
from coterie.report.document import format_note
from coterie.report.rows import RunRow, list_differences
from coterie.report.scores import (
    MISSING,
    Summary,
    SummaryColumn,
    compare_times,
    list_columns,
    measure,
    show_ratio,
    summarise,
)
from coterie.report.spread import make_spread
from coterie.report.tables import TableCell, format_table
from coterie.report.words import get_stem, name_metric

LINES = 200  # of all tables of one kind
_SEEDS = 20  # columns of differences
_BESIDE = 8  # rows that are columns in the table of settings
_KEYS = 12  # columns where rows are lines there
_TEXT = 60  # characters of a setting
_HEADS = {"_mean": "clients' mean", "_worst_decile": "worst tenth"}


def list_targets(rows: Sequence[RunRow], metric: str) -> list[float]:
    """List the targets of the rows that are judged by a metric, lowest first."""
    tables = [
        run.table("evaluate").get("targets", ())
        for row in rows
        if row.metric == metric
        for run in row.counted.values()
    ]
    listed = (some for some in tables if isinstance(some, list))
    return sorted({float(t) for some in listed for t in some if isinstance(t, int | float)})


def describe_lacking(rows: Sequence[RunRow], metric: str) -> str:
    """Say which rows did not measure a metric; empty where all did."""
    lacking = [row.name for row in rows if not row.list_finals(metric)]
    return f"Without {name_metric(metric)}: {list_first(lacking)}." if lacking else ""


def summarise_rows(rows: Sequence[RunRow], metric: str, targets: Sequence[float]) -> Summary:
    """Take mean and spread over the counted runs of every row, also of those without any."""
    measured = summarise(
        (row.name, measure(run.history, targets, metric))
        for row in rows
        for run in row.counted.values()
    )
    empty = summarise((row.name, {}) for row in rows)
    return {name: measured.get(name, row) for name, row in empty.items()}


def format_summary(
    rows: Sequence[RunRow], metric: str, targets: Sequence[float], most: int = LINES
) -> str:
    """Format the table that sorts: a line for every row, means and spreads over its seeds."""
    summary = summarise_rows(rows, metric, targets)
    columns, ratios = list(list_columns(summary, targets, metric)), compare_times(summary)
    lines: list[list[str | TableCell]] = []
    for row in rows[:most]:
        known, ratio = summary[row.name], ratios[row.name]
        cells = [
            TableCell(known.show(c), v.mean if (v := known.values.get(c)) else None)
            for c in columns
        ]
        runs = TableCell(str(known.runs), known.runs)
        lines.append([f"{row.name}{_mark(row)}", runs, *cells, TableCell(show_ratio(ratio), ratio)])
    head = ["row", "runs", *(_name_column(column, metric) for column in columns), "time ratio"]
    note = (
        "Mean over seeds and, behind ±, their standard deviation; - is not measured or never "
        "reached. MB are sent both ways, evaluation apart. The time ratio is that of the median "
        "round to the first row's, on the machines that ran them."
    )
    table = format_table(lines, head, range(1, len(head)), name=f"Table, {metric}")
    return table + format_note(note + _describe_rest(len(rows), most))


def _mark(row: RunRow) -> str:
    if row.finished:
        return ""
    return " (failed)" if any(m.failure for m in row.members) else " (unfinished)"


def _describe_rest(rows: int, most: int) -> str:
    return f" The first {most:,} of {rows:,} rows." if rows > most else ""


def _name_column(column: SummaryColumn, metric: str) -> str:
    if not column.name.startswith("client_"):
        return column.head
    head = next(text for end, text in _HEADS.items() if column.name.endswith(end))
    stem = get_stem(column.name)
    return head if stem == get_stem(metric) else f"{head}, {name_metric(stem)}"


def format_differences(rows: Sequence[RunRow], metric: str, most: int = LINES) -> str:
    """Format the differences from the first row on the same seed; empty where there are none."""
    finals = list_finals(rows, metric)
    if len(finals) < 2:
        return ""
    first, *others = finals
    seeds = sorted(finals[first])
    lines: list[list[str | TableCell]] = []
    for name in others[:most]:
        by_seed = {s: finals[name][s] - finals[first][s] for s in seeds if s in finals[name]}
        if by_seed:
            lines.append([name, *_list_differences(by_seed, seeds[:_SEEDS])])
    if not lines:
        return format_note(f"No row has a seed in common with {first}.")
    head = [f"minus {first}", *(f"seed {seed}" for seed in seeds[:_SEEDS])]
    head += ["mean", "deviation", "higher on"]
    note = (
        f"The last {name_metric(metric)} of each row minus that of {first} on the same seed, which "
        "also draws how the data are divided. A mean below the deviation is within the spread."
    )
    if len(seeds) > _SEEDS:
        note += f" {_SEEDS} of {len(seeds):,} seeds are columns; the mean counts all."
    table = format_table(lines, head, range(1, len(head)), name=f"Differences by seed, {metric}")
    return table + format_note(note + _describe_rest(len(others), most))


def _list_differences(by_seed: dict[int, float], seeds: Sequence[int]) -> Iterator[TableCell]:
    for seed in seeds:
        yield _show_difference(by_seed.get(seed))
    spread = make_spread(list(by_seed.values()))
    yield _show_difference(spread.mean)
    yield TableCell(MISSING if spread.std is None else f"{spread.std:.4f}", spread.std)
    ahead = sum(value > 0 for value in by_seed.values())
    yield TableCell(f"{ahead} of {len(by_seed)}", ahead / len(by_seed))


def _show_difference(value: float | None) -> TableCell:
    return TableCell(MISSING) if value is None else TableCell(f"{value:+.4f}", value)


def format_settings(rows: Sequence[RunRow]) -> str:
    """Format the keys in which the configurations of rows differ; values of one row are alike."""
    known = [row for row in rows if row.config]
    differing = list_differences([row.config for row in known])
    if not differing:
        text = "Nothing but the seed." if len(rows) > 1 else "There is one row."
        return format_note(text)
    if len(known) <= _BESIDE:
        lines = [[key, *(_show(value) for value in values)] for key, values in differing]
        return format_table(lines, ["key", *(row.name for row in known)])
    kept = differing[:_KEYS]
    lines = [
        [row.name, *(_show(values[at]) for _, values in kept)]
        for at, row in enumerate(known[:LINES])
    ]
    note = _describe_rest(len(known), LINES)
    if len(kept) < len(differing):
        note += f" {len(differing) - len(kept):,} more keys differ."
    table = format_table(lines, ["row", *(key for key, _ in kept)], name="What differs")
    return table + (format_note(note.strip()) if note else "")


def _show(value: str) -> str:
    return shorten_middle(value, _TEXT) if value else "-"
