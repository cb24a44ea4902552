"""The page of an outcome: one HTML file with the curves and the tables, which needs no network."""

from collections.abc import Iterator, Sequence
from html import escape

from coterie.report import tables
from coterie.report.chart import (
    Chart,
    layout,
    mark_target,
    rounds_between,
    series,
    share_axis,
    titled,
)
from coterie.report.page import document, figures, note
from coterie.reproduce.claims import Finding
from coterie.reproduce.difference import differences
from coterie.reproduce.entries import Outcome
from coterie.reproduce.plan import Plan
from coterie.reproduce.recipe import Column
from coterie.reproduce.sheet import Sheet
from coterie.reproduce.table import claim_sheet, failures, opening, sheets

_COLOURS = ("@blue", "@orange", "@green", "@purple", "@gold", "@sky", "@brown", "@ink")
_DASHES = ("solid", "dash", "dot", "dashdot")
_BESIDE = 5  # with more rows the legend stands beside the chart, which takes the whole width
_LINE = 20  # pixels of a line of the legend


def render(plan: Plan, outcome: Outcome, findings: Sequence[Finding]) -> str:
    """The whole page."""
    title = f"{plan.recipe.name}, {plan.scale} scale"
    return document(title, "\n".join(_body(plan, outcome, findings, title)))


def _body(plan: Plan, outcome: Outcome, findings: Sequence[Finding], title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    for line in opening(plan, outcome):
        yield f'<p class="soft">{escape(line.replace("`", ""))}</p>'
    charts = [chart for column in plan.columns if (chart := curves(plan, outcome, column))]
    if charts:
        yield "<h2>Curves</h2>"
        yield f"<noscript>{note('The charts need JavaScript; the tables do not.')}</noscript>"
        wide = len(plan.rows) > _BESIDE
        yield "".join(figures([chart]) for chart in charts) if wide else figures(charts)
    for sheet in sheets(plan, outcome):
        yield _table(sheet)
    if findings:
        yield _table(claim_sheet(findings))
    if failed := failures(outcome):
        yield "<h2>Failed runs</h2>"
        yield "".join(map(note, failed))
    yield "<h2>Settings that differ from the shipped configurations</h2>"
    yield "".join(map(note, differences(plan))) or note("None.")


def _table(sheet: Sheet) -> str:
    return f"<h2>{escape(sheet.title)}</h2>\n{tables.table(sheet.lines, sheet.head)}"


def curves(plan: Plan, outcome: Outcome, column: Column) -> Chart | None:
    """The metric by training round in one column, a line for every row; None before any run."""
    factor = 100.0 if plan.recipe.unit == "percent" else 1.0
    data, rounds = [], list[int]()
    for place, row in enumerate(plan.rows):
        curve = outcome.entry(row.name, column.name).curve
        rounds += [round for round, _ in curve]
        colour, dash = _COLOURS[place % len(_COLOURS)], _DASHES[place // 4 % len(_DASHES)]
        points = [(round, factor * value) for round, value in curve]
        data += series(points, row.name, colour, dash)
    if not data:
        return None
    target = outcome.targets.get(column.name)
    values = [value for line in data for value in line["y"]]
    values += [] if target is None else [factor * target]
    metric = plan.metric(column)
    axis = share_axis([value / factor for value in values], metric)
    if factor != 1.0:
        high = [factor * edge for edge in axis["range"]]
        axis = titled(f"{metric} (%)") | {"range": high}
    look = layout(rounds_between(min(rounds), max(rounds)), axis)
    if target is not None:
        mark_target(look, factor * target, high=0.95 * axis["range"][1])
    height = Chart.height
    if len(plan.rows) > _BESIDE:
        look["legend"] = {"x": 1.02, "y": 1, "yanchor": "top", "traceorder": "normal"}
        height = max(height, _LINE * len(plan.rows) + 100)
    words = "The mean over seeds." if _several(plan, outcome, column) else ""
    return Chart(column.name, data, look, words, height)


def _several(plan: Plan, outcome: Outcome, column: Column) -> bool:
    return any(outcome.entry(row.name, column.name).seeds > 1 for row in plan.rows)
