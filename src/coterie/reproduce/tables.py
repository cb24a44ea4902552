"""The outcome of a study as tables: for a terminal, as Markdown, as JSON."""

import functools
import json
import statistics
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import coterie
from coterie.core.formatting import TextTable
from coterie.report.spread import gap
from coterie.reproduce.plan import Cell, describe_changes
from coterie.reproduce.recipe import Column, Recipe, Row
from coterie.reproduce.scores import NONE, WINDOWS, CellScore, GridScore, Outcome
from coterie.reproduce.verdicts import FAILED, Finding, check_claim, format_rounds

CLAIMS = "Claims"  # the title of their table


def format_value(recipe: Recipe, value: float | None, printed: float | None = None) -> str:
    """Format a value as the paper does: `69.3` or `0.693`, a ratio of times `1.08`.

    A number that the paper printed keeps the digits that it has there.
    """
    if value is None:
        return NONE
    if recipe.measure == "cost":
        return format_large(value)
    if recipe.measure == "time":
        return f"{value:.2f}"
    scaled, digits = (100 * value, 1) if recipe.unit == "percent" else (value, 3)
    if printed is not None:
        digits = max(digits, len(repr(float(printed)).partition(".")[2]))
    return f"{scaled:.{digits}f}"


def format_large(value: float) -> str:
    """Format a number that may be very large: `1.69e13`; below a million with all its digits."""
    if value < 1e6:
        return f"{value:,.0f}"
    digits, _, power = f"{value:.3g}".partition("e+")
    return f"{digits}e{int(power)}"


def find_claims(outcome: Outcome) -> list[Finding]:
    """Test the recipe's claims."""
    recipe = outcome.study.recipe
    show = functools.partial(format_value, recipe)
    return [check_claim(claim, outcome, show) for claim in recipe.claims]


def build_tables(outcome: Outcome) -> Iterator[TextTable]:
    """Build a table for every column, then one for every grid; or take those of the outcome."""
    if outcome.tables:
        yield from outcome.tables
        return
    yield from (_build_column(outcome, column) for column in outcome.study.columns)
    for cell in outcome.study.cells:
        if grid := outcome.cell(cell.row.name, cell.column.name).grid:
            yield _build_grid(cell, outcome.study.recipe, grid)


def _build_column(outcome: Outcome, column: Column) -> TextTable:
    study, recipe = outcome.study, outcome.study.recipe
    target, timed = outcome.targets.get(column.name), recipe.measure == "time"
    several = len({cell.metric for cell in study.cells}) > 1
    lines = []
    for row in study.rows:
        score, cell = outcome.cell(row.name, column.name), study.cell(row.name, column.name)
        line = {"": row.name}
        if several:
            line["metric"] = cell.metric if cell else NONE
        line["time ratio" if timed else "ours"] = format_ours(recipe, score)
        line["seeds"] = str(score.seeds)
        if not timed:
            difference = _format_difference(recipe, score, outcome.reference(column.name))
            line[f"- {recipe.reference}, by seed"] = difference
        line["paper's ratio" if timed else "paper"] = format_paper(recipe, row, score)
        if target is not None:
            line[f"rounds to {format_value(recipe, target)}"] = format_rounds(score)
            for window in WINDOWS[1:]:
                line[f"by mean of {window}"] = format_rounds(score, window)
            line["paper's rounds"] = score.paper_rounds or NONE
            line["speedup"] = _format_ratio(score.speedup)
            smoothed = (score.smoothed_speedup.get(window) for window in WINDOWS[1:])
            line["speedup by means"] = ", ".join(map(_format_ratio, smoothed))
        if timed:
            seconds = statistics.fmean(score.seconds) if score.seconds else None
            line["seconds a round"] = _format_ratio(seconds)
        else:
            line["time ratio"] = _format_ratio(score.ratio)
        line["verdict"] = score.verdict
        lines.append(line)
    return TextTable(column.name, list(lines[0]), [list(line.values()) for line in lines])


def format_ours(recipe: Recipe, score: CellScore) -> str:
    """Format our mean over seeds with its spread; `failed` where no run has a value."""
    mean = _join_spread(*(format_value(recipe, v) for v in (score.mean, score.deviation)))
    return FAILED if mean == NONE and score.failures else mean


def format_paper(recipe: Recipe, row: Row, score: CellScore) -> str:
    """Format the number that the paper has in a cell, with its spread."""
    printed = format_value(recipe, score.paper, row.value.get(score.column))
    spread = format_value(recipe, score.paper_spread, row.spread.get(score.column))
    return _join_spread(printed, spread)


def _join_spread(value: str, spread: str) -> str:
    return value if NONE in (value, spread) else f"{value} ± {spread}"


def _format_difference(recipe: Recipe, score: CellScore, reference: CellScore) -> str:
    """Format the mean difference from the reference on the seeds that both have."""
    ours, theirs = score.by_seed(), reference.by_seed()
    common = ours.keys() & theirs.keys()
    if score.row == reference.row or not common:
        return NONE
    difference, apart = gap(ours, theirs)
    text = f"{'+' if difference >= 0 else '-'}{format_value(recipe, abs(difference))}"
    return _join_spread(text, format_value(recipe, apart if len(common) > 1 else None))


def _format_ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _build_grid(cell: Cell, recipe: Recipe, grid: Sequence[GridScore]) -> TextTable:
    lines = []
    for point in grid:
        values = (format_value(recipe, value) for value in (point.value, point.chosen_by))
        lines.append([point.name, *values, "chosen" if point.chosen else ""])
    head = ["", cell.metric, f"chosen by {cell.chosen_by}", ""]
    return TextTable(f"{cell.name}: what was tried, on the first seed", head, lines)


def to_text(outcome: Outcome, width: int) -> str:
    """Format tables and claims for a terminal of a width."""
    parts = [f"{table.title}\n{table.to_text(width)}" for table in build_tables(outcome)]
    lines = (f"{finding.verdict}: {finding.text}" for finding in find_claims(outcome))
    claims = [textwrap.fill(line, width, subsequent_indent="  ") for line in lines]
    return "\n\n".join([*parts, "\n".join(claims)]).rstrip()


def to_markdown(outcome: Outcome) -> str:
    """Format the whole outcome as a page of Markdown."""
    parts = [f"# {outcome.study.title}", *introduce(outcome)]
    for section in list_sections(outcome):
        listed = "\n".join(f"- {line[0]}" for line in section.lines) or "None."
        parts += [f"## {section.title}", section.to_markdown() if section.head else listed]
    return "\n\n".join(parts) + "\n"


def list_sections(outcome: Outcome) -> Iterator[TextTable]:
    """List what a page has below its introduction: tables, and without a head lines of text."""
    yield from build_tables(outcome)
    if findings := find_claims(outcome):
        lines = [[finding.verdict, finding.text, finding.numbers] for finding in findings]
        yield TextTable(CLAIMS, ["verdict", "claim", "numbers"], lines)
    cells = outcome.cells.values()
    if failed := [[f"{c.row}, {c.column}, {failure}"] for c in cells for failure in c.failures]:
        yield TextTable("Failed runs", (), failed)
    changes = [[change] for change in describe_changes(outcome.study)]
    yield TextTable("Settings that differ from the shipped configurations", (), changes)


def introduce(outcome: Outcome) -> Iterator[str]:
    """Say which paper, command and scale it is, how far it is, and what is left out."""
    study = outcome.study
    yield study.recipe.paper
    yield study.recipe.about
    runs = f"{outcome.finished} of {outcome.total} runs are finished."
    yield f"`{study.command}`: {runs if outcome.total else 'nothing is run.'}"
    if note := study.recipe.scales[study.scale].note:
        yield note
    yield from study.left_out


def to_json(outcome: Outcome) -> bytes:
    """Encode all scores, accuracies as fractions, with the curves."""
    study, recipe = outcome.study, outcome.study.recipe
    columns = []
    for column in study.columns:
        rows = [_describe_cell(outcome, cell) for cell in study.cells if cell.column is column]
        target = outcome.targets.get(column.name)
        columns.append({"name": column.name, "target": target, "rows": rows})
    document = {
        "recipe": recipe.name,
        "scale": study.scale,
        "command": study.command,
        "version": coterie.__version__,
        "commit": _find_commit(),
        "paper": recipe.paper,
        "measure": recipe.measure,
        "reference": recipe.reference,
        "finished": outcome.finished,
        "total": outcome.total,
        "columns": columns,
        "claims": [asdict(finding) for finding in find_claims(outcome)],
        "left_out": list(study.left_out),
        "settings": list(describe_changes(study)),
    }
    if outcome.tables:
        document["tables"] = [asdict(table) for table in outcome.tables]
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _describe_cell(outcome: Outcome, cell: Cell) -> dict[str, Any]:
    """Everything known of a row in a column; folders relative to that of all outcomes."""
    score = outcome.cell(cell.row.name, cell.column.name)
    folders = ["/".join(Path(folder).parts[-2:]) for folder in score.folders]
    more = {"metric": cell.metric, "chosen_by": cell.chosen_by, "folders": folders}
    return asdict(score) | more


def _find_commit() -> str:
    """Find the commit of the package where it runs from a clone; empty elsewhere."""
    command = ["git", "-C", str(Path(coterie.__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
