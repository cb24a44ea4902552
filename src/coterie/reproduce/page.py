"""Writes the files of an outcome: `outcome.json`, `table.md`, `report.html`, curves as SVG."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from coterie.core.files import replace_durably
from coterie.report import chart, line_chart, tables
from coterie.report.chart import Chart
from coterie.report.page import NO_SCRIPT, format_figures, format_note, make_document
from coterie.report.scatter import PALETTE
from coterie.reproduce.further_curves import Rows, read_rows
from coterie.reproduce.recipe import Column
from coterie.reproduce.scores import Outcome
from coterie.reproduce.tables import introduce, list_sections, to_json, to_markdown

_DASHES = ("solid", "dash", "dot", "dashdot")
_BESIDE = 5  # with more rows the legend is beside the chart, which takes the whole width
_LINE = 20  # pixels of a line of the legend


def write_outcome(outcome: Outcome, out: Path) -> Path:
    """Write all files of an outcome, each atomically; return their folder."""
    study, folder = outcome.study, out / outcome.study.folder
    replace_durably(folder / "outcome.json", to_json(outcome))
    replace_durably(folder / "table.md", to_markdown(outcome).encode())
    further = {metric: read_rows(outcome, metric) for metric in study.recipe.draw}
    page = make_document(study.title, "\n".join(_list_parts(outcome, further)))
    replace_durably(folder / "report.html", page.encode())
    for column in study.columns:
        curves = [(row.name, outcome.cell(row.name, column.name).curve) for row in study.rows]
        if lines := [line for line in curves if len(line[1]) > 1]:
            name = re.sub(r"[^A-Za-z0-9.=]+", "-", column.name).strip("-").lower()
            title = f"{study.title}: {column.name}"
            picture = line_chart.draw(lines, title, study.metric(column))
            replace_durably(folder / f"curves-{name}.svg", picture.encode())
    for metric, rows in further.items():
        if rows:
            picture = line_chart.draw_panels(rows, f"{study.title}: {metric}", metric)
            replace_durably(folder / f"{metric}-by-row.svg", picture.encode())
    return folder


def _list_parts(outcome: Outcome, further: Mapping[str, Rows]) -> Iterator[str]:
    study = outcome.study
    yield f"<h1>{escape(study.title)}</h1>"
    for line in introduce(outcome):
        yield f'<p class="soft">{escape(line.replace("`", ""))}</p>'
    charts = [drawn for column in study.columns if (drawn := _chart_column(outcome, column))]
    if charts:
        yield "<h2>Curves</h2>"
        yield NO_SCRIPT
        groups = [[each] for each in charts] if len(study.rows) > _BESIDE else [charts]
        yield "".join(map(format_figures, groups))
    for metric, rows in further.items():
        if rows:
            yield f"<h2>{escape(metric)} by row</h2>"
            yield format_note("Each row has a scale of its own: values of rows may not compare.")
            yield format_figures([_chart_row(*row, metric) for row in rows], "charts small")
    for section in list_sections(outcome):
        yield f"<h2>{escape(section.title)}</h2>"
        if section.head:
            yield tables.format_table(section.lines, section.head)
        else:
            yield "".join(format_note(line) for (line,) in section.lines) or format_note("None.")


def _chart_row(name: str, lines: Sequence[line_chart.Line], metric: str) -> Chart:
    """Chart a further metric of one row by training round, a line for every column."""
    data = []
    for position, (column, curve) in enumerate(lines):
        colour, dash = PALETTE[position % len(PALETTE)], _DASHES[position // 4 % len(_DASHES)]
        data += chart.make_series(curve, column, colour, dash)
    rounds = [round for _, curve in lines for round, _ in curve]
    axis = chart.make_round_axis(min(rounds), max(rounds))
    look = chart.make_layout(axis, chart.make_axis(metric))
    look["showlegend"] = len(lines) > 1
    return Chart(name, data, look, height=260)


def _chart_column(outcome: Outcome, column: Column) -> Chart | None:
    """Chart the metric by training round, a line for every row; None before any run."""
    study = outcome.study
    factor = 100.0 if study.recipe.unit == "percent" else 1.0
    data, rounds = [], list[int]()
    for position, row in enumerate(study.rows):
        curve = outcome.cell(row.name, column.name).curve
        rounds += [round for round, _ in curve]
        colour, dash = PALETTE[position % len(PALETTE)], _DASHES[position // 4 % len(_DASHES)]
        points = [(round, factor * value) for round, value in curve]
        data += chart.make_series(points, row.name, colour, dash)
    if not data:
        return None
    target, metric = outcome.targets.get(column.name), study.metric(column)
    values = [value / factor for line in data for value in line["y"]]
    axis = chart.make_share_axis(values if target is None else [*values, target], metric)
    if factor != 1.0:
        edges = [factor * edge for edge in axis["range"]]
        axis = chart.make_axis(f"{metric} (%)") | {"range": edges}
    look = chart.make_layout(chart.make_round_axis(min(rounds), max(rounds)), axis)
    if target is not None:
        chart.mark_target(look, factor * target, high=0.95 * axis["range"][1])
    height = Chart.height
    if len(study.rows) > _BESIDE:
        look["legend"] = {"x": 1.02, "y": 1, "yanchor": "top", "traceorder": "normal"}
        height = max(height, _LINE * len(study.rows) + 100)
    several = any(outcome.cell(row.name, column.name).seeds > 1 for row in study.rows)
    return Chart(column.name, data, look, "The mean over seeds." if several else "", height)
