"""The table of `coterie compare` and `coterie sweep`: for people, and as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie.core.formatting import TextTable
from coterie.core.settings import EvaluateSettings
from coterie.report.rows import Member, RunRow, read_member
from coterie.report.scores import (
    MEGABYTES,
    ROUNDS,
    SECONDS,
    Summary,
    SummaryColumn,
    SummaryRow,
    compare_times,
    list_columns,
    measure,
    show_ratio,
    summarise,
)
from coterie.reproduce.runs import Ended


def summarise_runs(runs: Iterable[Ended]) -> Summary:
    """Take mean and spread over the finished runs of every row."""
    settings = ((ended, ended.trial.config.evaluate) for ended in runs)
    return summarise(
        (ended.trial.row, measure(ended.history, evaluate.targets, evaluate.metric))
        for ended, evaluate in settings
    )


def make_rows(runs: Iterable[Ended]) -> list[RunRow]:
    """Read the runs again for the page, in the rows of the table; those that failed, too."""
    rows: dict[str, dict[Path, Member]] = {}
    for ended in runs:
        trial, failure = ended.trial, str(ended.error) if ended.error else ""
        member = read_member(trial.folder, failure, trial.config.tables)
        rows.setdefault(trial.row, {})[trial.folder] = member
    return [RunRow(name, tuple(members.values())) for name, members in rows.items()]


def make_table(summary: Summary, settings: EvaluateSettings) -> TextTable:
    """Make the table: mean and spread over seeds, times as ratios to the first row."""
    columns = list(list_columns(summary, settings.targets, settings.metric))
    ratios = compare_times(summary)
    lines = []
    for name, row in summary.items():
        cells = [row.show(column) for column in columns]
        lines.append([name, str(row.runs), *cells, show_ratio(ratios[name])])
    heads = [column.head for column in columns]
    return TextTable("", ["", "runs", *heads, "time ratio"], lines)


def to_json(summary: Summary, settings: EvaluateSettings, runs: Sequence[Ended]) -> bytes:
    """Encode the table: every number under a name in snake_case, beside the text that is shown."""
    ratios = compare_times(summary)
    rows = [
        {
            "name": name,
            "runs": row.runs,
            **{c.name: _encode(row, c) for c in list_columns(summary, (), settings.metric)},
            "targets": [
                {
                    "target": target,
                    **{
                        what: _encode(row, SummaryColumn(what, target))
                        for what in (ROUNDS, MEGABYTES)
                    },
                }
                for target in settings.targets
            ],
            SECONDS: _encode(row, SummaryColumn(SECONDS)),
            "time_ratio": {"value": ratios[name], "shown": show_ratio(ratios[name])},
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
