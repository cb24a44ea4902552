"""Writes the files of an outcome: `outcome.json`, `table.md`, `report.html`, curves as SVG."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from coterie.core.files import replace_durably
from coterie.core.formatting import TextTable
from coterie.report import line_chart, tables
from coterie.report.chart import (
    Chart,
    make_axis,
    make_axis_between,
    make_layout,
    make_series,
    make_share_axis,
    mark_target,
)
from coterie.report.page import format_figures, format_note, make_document
from coterie.reproduce.recipe import Column
from coterie.reproduce.scores import Outcome
from coterie.reproduce.tables import introduce, list_sections, to_json, to_markdown

_COLOURS = ("@blue", "@orange", "@green", "@purple", "@gold", "@sky", "@brown", "@ink")
_DASHES = ("solid", "dash", "dot", "dashdot")
_BESIDE = 5  # with more rows the legend is beside the chart, which takes the whole width
_LINE = 20  # pixels of a line of the legend


def write_outcome(outcome: Outcome, out: Path) -> Path:
    """Write all files of an outcome, each atomically; return their folder."""
    folder = out / outcome.study.folder
    replace_durably(folder / "outcome.json", to_json(outcome))
    replace_durably(folder / "table.md", to_markdown(outcome).encode())
    replace_durably(folder / "report.html", render(outcome).encode())
    for name, picture in draw_curves(outcome):
        replace_durably(folder / name, picture.encode())
    return folder


def draw_curves(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Draw every column that has curves: the name of a file, and its SVG."""
    study = outcome.study
    for column in study.columns:
        lines = [(row.name, outcome.cell(row.name, column.name).curve) for row in study.rows]
        lines = [line for line in lines if len(line[1]) > 1]
        if lines:
            name = re.sub(r"[^A-Za-z0-9.=]+", "-", column.name).strip("-").lower()
            title = f"{study.title}: {column.name}"
            yield f"curves-{name}.svg", line_chart.draw(lines, title, study.metric(column))


def render(outcome: Outcome) -> str:
    """Make the page: one HTML file with curves and tables, which needs no network."""
    return make_document(outcome.study.title, "\n".join(_list_parts(outcome)))


def _list_parts(outcome: Outcome) -> Iterator[str]:
    study = outcome.study
    yield f"<h1>{escape(study.title)}</h1>"
    for line in introduce(outcome):
        yield f'<p class="soft">{escape(line.replace("`", ""))}</p>'
    charts = [chart for column in study.columns if (chart := _chart_column(outcome, column))]
    if charts:
        yield "<h2>Curves</h2>"
        hint = format_note("The charts need JavaScript; the tables do not.")
        yield f"<noscript>{hint}</noscript>"
        groups = [[chart] for chart in charts] if len(study.rows) > _BESIDE else [charts]
        yield "".join(map(format_figures, groups))
    for section in list_sections(outcome):
        if isinstance(section, TextTable):
            table = tables.format_table(section.lines, section.head)
            yield f"<h2>{escape(section.title)}</h2>\n{table}"
        else:
            title, lines = section
            yield f"<h2>{title}</h2>"
            yield "".join(map(format_note, lines)) or format_note("None.")


def _chart_column(outcome: Outcome, column: Column) -> Chart | None:
    """Chart the metric by training round, a line for every row; None before any run."""
    study = outcome.study
    factor = 100.0 if study.recipe.unit == "percent" else 1.0
    data, rounds = [], list[int]()
    for position, row in enumerate(study.rows):
        curve = outcome.cell(row.name, column.name).curve
        rounds += [round for round, _ in curve]
        colour = _COLOURS[position % len(_COLOURS)]
        dash = _DASHES[position // 4 % len(_DASHES)]
        points = [(round, factor * value) for round, value in curve]
        data += make_series(points, row.name, colour, dash)
    if not data:
        return None
    target = outcome.targets.get(column.name)
    values = [value for line in data for value in line["y"]]
    values += [] if target is None else [factor * target]
    metric = study.metric(column)
    axis = make_share_axis([value / factor for value in values], metric)
    if factor != 1.0:
        axis = make_axis(f"{metric} (%)") | {"range": [factor * edge for edge in axis["range"]]}
    look = make_layout(make_axis_between(min(rounds), max(rounds)), axis)
    if target is not None:
        mark_target(look, factor * target, high=0.95 * axis["range"][1])
    height = Chart.height
    if len(study.rows) > _BESIDE:
        look["legend"] = {"x": 1.02, "y": 1, "yanchor": "top", "traceorder": "normal"}
        height = max(height, _LINE * len(study.rows) + 100)
    several = any(outcome.cell(row.name, column.name).seeds > 1 for row in study.rows)
    return Chart(column.name, data, look, "The mean over seeds." if several else "", height)
