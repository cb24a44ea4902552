"""The numbers of a claim in a few words, the paper's and ours; `results.py` calls it."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from coterie.reproduce.recipe import Claim, Recipe
from coterie.reproduce.scores import NONE, WINDOWS, CellScore, GridScore
from coterie.reproduce.tables import format_value
from coterie.reproduce.verdicts import format_rounds

_NEVER = re.compile(r" \(\d+ of \d+ never\)")
_FEW = 4  # numbers that are listed; of more, the range
Cells = dict[tuple[str, str], CellScore]
Find = Callable[[str, str], float | None]  # the value of a row in a column


def write(claim: Claim, recipe: Recipe, outcome: dict[str, Any]) -> tuple[str, str]:
    """Write the paper's numbers of a claim, and ours."""
    cells = read_cells(outcome)
    columns = _find_columns(claim, cells)
    if not columns:
        return NONE, NONE
    if claim.kind == "faster":
        return _write_printed_rounds(claim, recipe, columns), _write_rounds(claim, cells, columns)
    if claim.kind == "falls":
        return NONE, _write_fall(recipe, cells[claim.above, columns[0]])

    def find_printed(row: str, column: str) -> float | None:
        return cells[row, column].paper

    def find_ours(row: str, column: str) -> float | None:
        """The mean over the seeds that all rows of the claim have, or over all of its own."""
        own = cells[row, column].by_seed()
        others = [cells[other, column].by_seed() for other in (claim.above, claim.below) if other]
        common = own.keys() & set.intersection(*map(set, others))
        return statistics.fmean(own[seed] for seed in common or own)

    paper = _write_values(claim, recipe, columns, find_printed)
    return paper, _write_values(claim, recipe, columns, find_ours)


def read_cells(outcome: dict[str, Any]) -> Cells:
    """Read the scores of an outcome; one that is older lacks some fields."""
    known = {field.name for field in fields(CellScore)}
    cells = Cells()
    for column in outcome["columns"]:
        for row in column["rows"]:
            kept = {key: value for key, value in row.items() if key in known}
            for key in ("smoothed", "smoothed_speedup"):
                kept[key] = {int(n): value for n, value in kept.get(key, {}).items()}
            kept["grid"] = tuple(GridScore(**point) for point in kept.get("grid", ()))
            cells[row["row"], column["name"]] = CellScore(**kept)
    return cells


def _find_columns(claim: Claim, cells: Cells) -> list[str]:
    """The columns of a claim in which all its rows have a value."""
    rows = [row for row in (claim.above, claim.below) if row]
    run = dict.fromkeys(column for _, column in cells)
    return [
        column
        for column in run
        if column in (claim.columns or run) or column == claim.at
        if all((cell := cells.get((row, column))) and cell.mean is not None for row in rows)
    ]


def _write_values(claim: Claim, recipe: Recipe, columns: Sequence[str], find: Find) -> str:
    """Write values of one row, or how two rows compare, in every column."""
    rows = [claim.above, *([claim.below] if claim.below else [])]
    table = [[find(row, column) for row in rows] for column in columns]
    values = [[value for value in line if value is not None] for line in table]
    if any(len(line) < len(rows) for line in values):
        return NONE
    if len(rows) == 1:
        return _list([format_value(recipe, line[0]) for line in values])
    if claim.kind == "times":
        ratios = [a / b if b else math.inf for a, b in values]
        return _list([f"{r:,.0f} times" if r >= 100 else f"{r:.3g} times" for r in ratios])
    differences = [first - second for first, second in values]
    texts = [f"{'+' if d >= 0 else '-'}{format_value(recipe, abs(d))}" for d in differences]
    if len(values) > 1:
        return _list(texts)
    first, second = (format_value(recipe, value) for value in values[0])
    return f"{texts[0]} ({first} against {second})"


def _list(texts: Sequence[str]) -> str:
    """List a few numbers, or give the range of many."""
    if len(texts) <= _FEW:
        return ", ".join(texts)
    ordered = sorted(texts, key=lambda text: float(text.split()[0].replace(",", "")))
    return f"{ordered[0]} to {ordered[-1]} ({len(texts)} settings)"


def _write_printed_rounds(claim: Claim, recipe: Recipe, columns: Sequence[str]) -> str:
    """Write the rounds that the paper prints."""
    printed = {row.name: row.rounds for row in recipe.rows}
    pairs = [[printed[row].get(c, "") for row in (claim.above, claim.below)] for c in columns]
    if not all(str(rounds) for pair in pairs for rounds in pair):
        return NONE
    return ", ".join(f"{first} against {second}" for first, second in pairs[:_FEW])


def _write_rounds(claim: Claim, cells: Cells, columns: Sequence[str]) -> str:
    """Write our rounds to the target by single rounds, and in brackets by means of several."""
    both = [(cells[claim.above, column], cells[claim.below, column]) for column in columns[:_FEW]]
    pairs = [(first.on_seeds_of(second), second.on_seeds_of(first)) for first, second in both]
    if len(pairs) == 1:
        text = " against ".join(_format_rounds(cell, 1) for cell in pairs[0])
    else:
        text = ", ".join(_pair_rounds(*pair, 1) for pair in pairs)
    by_window = {n: [_pair_rounds(*pair, n) for pair in pairs] for n in WINDOWS[1:]}
    smoothed = [f"{n}: {','.join(each)}" for n, each in by_window.items() if set(each) != {NONE}]
    return text + (f" ({'; '.join(smoothed)})" if smoothed else "")


def _pair_rounds(first: CellScore, second: CellScore, window: int) -> str:
    """Write the rounds of two rows by the mean of so many; an older outcome has single ones."""
    if not (first.rounds_over(window) and second.rounds_over(window)):
        return NONE
    return f"{_format_rounds(first, window)}/{_format_rounds(second, window)}"


def _format_rounds(cell: CellScore, window: int) -> str:
    """Write the mean number of rounds, marked where some seeds never reached the target."""
    return _NEVER.sub("†", format_rounds(cell, window))


def _write_fall(recipe: Recipe, cell: CellScore) -> str:
    """Write where a curve ends, and its highest point."""
    values = [value for _, value in cell.curve] or [statistics.fmean(cell.values)]
    end, best = (format_value(recipe, value) for value in (values[-1], max(values)))
    return f"{end} at the end, {best} at best"
