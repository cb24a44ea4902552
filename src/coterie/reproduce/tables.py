"""The outcome of a study as tables: for a terminal, as Markdown, as JSON."""

import json
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import coterie
from coterie.core.formatting import TextTable
from coterie.reproduce.plan import Cell, describe_changes
from coterie.reproduce.recipe import Column, Recipe
from coterie.reproduce.scores import NONE, CellScore, Outcome, gap
from coterie.reproduce.verdicts import Finding, check_claims, format_rounds


def format_value(recipe: Recipe, value: float, printed: float | None = None) -> str:
    """Format a value as the paper does: `69.3` or `0.693`, a ratio of times `1.08`.

    A number that the paper printed keeps the digits that it has there.
    """
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
    return check_claims(recipe.claims, outcome, lambda value: format_value(recipe, value))


def build_tables(outcome: Outcome) -> Iterator[TextTable]:
    """Build a table for every column, then one for every grid; or take those of the outcome."""
    if outcome.tables:
        yield from outcome.tables
        return
    for column in outcome.study.columns:
        yield _build_column(outcome, column)
    for cell in outcome.study.cells:
        score = outcome.cell(cell.row.name, cell.column.name)
        if score.grid:
            yield _build_grid(cell, outcome.study.recipe, score)


def _build_column(outcome: Outcome, column: Column) -> TextTable:
    study, recipe = outcome.study, outcome.study.recipe
    target, timed = outcome.targets.get(column.name), recipe.measure == "time"
    lines = []
    for row in study.rows:
        score, cell = outcome.cell(row.name, column.name), study.cell(row.name, column.name)
        line = {"": row.name, "metric": cell.metric if cell else NONE}
        line["time ratio" if timed else "ours"] = _format_mean(recipe, score)
        line["seeds"] = str(score.seeds)
        if not timed:
            difference = _format_difference(recipe, score, outcome.reference(column.name))
            line[f"- {recipe.reference}, by seed"] = difference
        line["paper's ratio" if timed else "paper"] = _format_paper(recipe, score)
        if target is not None:
            line[f"rounds to {format_value(recipe, target)}"] = format_rounds(score)
            line["paper's rounds"] = score.paper_rounds or NONE
            line["speedup"] = _format_ratio(score.speedup)
        if timed:
            seconds = statistics.fmean(score.seconds) if score.seconds else None
            line["seconds a round"] = _format_ratio(seconds)
        else:
            line["time ratio"] = _format_ratio(score.ratio)
        line["verdict"] = score.verdict
        if len({cell.metric for cell in study.cells}) == 1:
            del line["metric"]
        lines.append(line)
    return TextTable(column.name, list(lines[0]), [list(line.values()) for line in lines])


def _format_mean(recipe: Recipe, score: CellScore) -> str:
    if score.mean is None:
        return "failed" if score.failures else NONE
    text = format_value(recipe, score.mean)
    return text if score.deviation is None else f"{text} ± {format_value(recipe, score.deviation)}"


def _format_difference(recipe: Recipe, score: CellScore, reference: CellScore) -> str:
    """Format the mean difference from the reference on the seeds that both have."""
    ours, theirs = score.by_seed(), reference.by_seed()
    common = ours.keys() & theirs.keys()
    if score.row == reference.row or not common:
        return NONE
    difference, apart = gap(ours, theirs)
    text = f"{'+' if difference >= 0 else '-'}{format_value(recipe, abs(difference))}"
    if len(common) < 2 or apart is None:
        return text
    return f"{text} ± {format_value(recipe, apart)}"


def _format_paper(recipe: Recipe, score: CellScore) -> str:
    if score.paper is None:
        return NONE
    row = recipe.row(score.row)
    text = format_value(recipe, score.paper, row.value.get(score.column))
    if score.paper_spread is None:
        return text
    spread = format_value(recipe, score.paper_spread, row.spread.get(score.column))
    return f"{text} ± {spread}"


def _format_ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _build_grid(cell: Cell, recipe: Recipe, score: CellScore) -> TextTable:
    lines = [
        [
            point.name,
            *(
                NONE if v is None else format_value(recipe, v)
                for v in (point.value, point.chosen_by)
            ),
            "chosen" if point.chosen else "",
        ]
        for point in score.grid
    ]
    head = ["", cell.metric, f"chosen by {cell.chosen_by}", ""]
    return TextTable(f"{cell.name}: what was tried, on the first seed", head, lines)


def to_text(outcome: Outcome) -> str:
    """Format tables and claims for a terminal."""
    parts = [f"{table.title}\n{table.to_text()}" for table in build_tables(outcome)]
    claims = [f"{finding.verdict}: {finding.text}" for finding in find_claims(outcome)]
    return "\n\n".join([*parts, "\n".join(claims)]).rstrip()


def to_markdown(outcome: Outcome) -> str:
    """Format the whole outcome as a page of Markdown."""
    parts = [f"# {outcome.study.title}", *introduce(outcome)]
    for section in list_sections(outcome):
        if isinstance(section, TextTable):
            parts += [f"## {section.title}", section.to_markdown()]
        else:
            title, lines = section
            parts += [f"## {title}", "\n".join(f"- {line}" for line in lines) or "None."]
    return "\n\n".join(parts) + "\n"


def list_sections(outcome: Outcome) -> Iterator[TextTable | tuple[str, Sequence[str]]]:
    """List what a page has below its introduction: tables, and titles with lines of text."""
    yield from build_tables(outcome)
    if findings := find_claims(outcome):
        lines = [[finding.verdict, finding.text, finding.numbers] for finding in findings]
        yield TextTable("Claims", ["verdict", "claim", "numbers"], lines)
    if outcome.failures:
        yield "Failed runs", outcome.failures
    changes = list(describe_changes(outcome.study))
    yield "Settings that differ from the shipped configurations", changes


def introduce(outcome: Outcome) -> Iterator[str]:
    """Say which paper, command and scale it is, how far it is, and what is left out."""
    study = outcome.study
    yield study.recipe.paper
    yield study.recipe.about
    runs = f"{outcome.finished} of {outcome.total} runs are finished."
    yield f"`{study.command}`: {runs if outcome.total else 'nothing is run.'}"
    if study.note:
        yield study.note
    yield from study.left_out


def to_json(outcome: Outcome) -> bytes:
    """Encode all scores, accuracies as fractions, with the curves."""
    study, recipe = outcome.study, outcome.study.recipe
    columns = [
        {
            "name": column.name,
            "target": outcome.targets.get(column.name),
            "rows": [
                _describe_cell(cell, outcome.cell(cell.row.name, column.name))
                for cell in study.cells
                if cell.column is column
            ],
        }
        for column in study.columns
    ]
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


def _describe_cell(cell: Cell, score: CellScore) -> dict[str, Any]:
    """Everything known of a row in a column; folders relative to that of all outcomes."""
    return {
        **asdict(score),
        "metric": cell.metric,
        "chosen_by": cell.chosen_by,
        "ratio": score.ratio,
        "folders": ["/".join(Path(folder).parts[-2:]) for folder in score.folders],
    }


def _find_commit() -> str:
    """Find the commit of the package where it runs from a clone; empty elsewhere."""
    command = ["git", "-C", str(Path(coterie.__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
