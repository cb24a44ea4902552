"""Reads further metrics of the runs of a study: curves that no table is made of, such as losses."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coterie.core.errors import CheckpointError
from coterie.engine.record import MetricsFile
from coterie.report.line_chart import Curve, Line
from coterie.reproduce.plan import Cell
from coterie.reproduce.scores import CellScore, Outcome, Score, average_curves, score_run

Rows = list[tuple[str, list[Line]]]  # by row, its lines


def read_rows(outcome: Outcome, metric: str) -> Rows:
    """Read the curves of a metric: for every row that has it, a line for each of its columns.

    Columns that read the same runs, each with a metric of its own, share the first one's line.
    """
    rows = [(row.name, list(_list_lines(outcome, row.name, metric))) for row in outcome.study.rows]
    return [(name, lines) for name, lines in rows if lines]


def _list_lines(outcome: Outcome, row: str, metric: str) -> Iterator[Line]:
    seen = set[tuple[str, ...]]()
    for column in outcome.study.columns:
        cell, score = outcome.study.cell(row, column.name), outcome.cell(row, column.name)
        if cell is None or score.folders in seen:
            continue
        seen.add(score.folders)
        curve = _read_curve(replace(cell, metric=metric), score)
        if len(curve) > 1:
            yield column.name, curve


def _read_curve(cell: Cell, score: CellScore) -> Curve:
    """Average a cell's curve over its finished runs."""
    runs = list[Score]()
    for seed, folder in enumerate(score.folders):
        try:
            history = MetricsFile(Path(folder) / "metrics.jsonl").read()
        except CheckpointError:
            continue  # the table says of a damaged run that it failed
        run = score_run(history, cell, seed, folder)
        if run.curve:
            runs.append(run)
    return average_curves(runs)
