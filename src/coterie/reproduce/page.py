"""Writes the files of an outcome: `outcome.json`, `table.md`, `report.html`, curves as SVG."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from coterie.core.files import replace_durably
from coterie.report import line_chart, tables
from coterie.report.chart import Chart, make_axis, make_looks, make_round_axis, make_series
from coterie.report.document import format_body, format_figures, format_note, make_document
from coterie.reproduce.further_curves import Rows, read_rows
from coterie.reproduce.recipe import Column
from coterie.reproduce.scores import Outcome
from coterie.reproduce.tables import introduce, list_sections, to_json, to_markdown

_NUMBER = re.compile(r"-?|-, -|[-+>]?\d[\d.,]*( ± [\d.]+)?(, [\d.]+)?|failed")
_BESIDE = 5  # rows up to which two charts are beside each other


def write_outcome(outcome: Outcome, out: Path) -> Path:
    """Write all files of an outcome, each atomically; return their folder."""
    study, folder = outcome.study, out / outcome.study.folder
    replace_durably(folder / "outcome.json", to_json(outcome))
    replace_durably(folder / "table.md", to_markdown(outcome).encode())
    further = {metric: read_rows(outcome, metric) for metric in study.recipe.draw}
    page = make_document(study.title, _make_body(outcome, further))
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


def _make_body(outcome: Outcome, further: Mapping[str, Rows]) -> str:
    study = outcome.study
    head = [f"<h1>{escape(study.title)}</h1>"]
    head += [f'<p class="soft">{escape(line.replace("`", ""))}</p>' for line in introduce(outcome)]
    return format_body("\n".join(head), list(_list_sections(outcome, further)))


def _list_sections(outcome: Outcome, further: Mapping[str, Rows]) -> Iterator[tuple[str, str]]:
    study = outcome.study
    charts = [drawn for column in study.columns if (drawn := _chart_column(outcome, column))]
    if charts:
        # with many rows the legend is long, and the chart takes the whole width
        groups = [[each] for each in charts] if len(study.rows) > _BESIDE else [charts]
        yield "Curves", "\n".join(map(format_figures, groups))
    for metric, rows in further.items():
        if rows:
            note = format_note("Each row has a scale of its own: values of rows may not compare.")
            small = format_figures([_chart_row(*row, metric) for row in rows], "charts small")
            yield f"{metric} by row", note + small
    for section in list_sections(outcome):
        if section.head:
            numbers = _find_numbers(section.lines)
            yield section.title, tables.format_table(section.lines, section.head, numbers)
        else:
            notes = "".join(format_note(line) for (line,) in section.lines)
            yield section.title, notes or format_note("None.")


def _find_numbers(lines: Sequence[Sequence[str]]) -> list[int]:
    """Find the columns of a table that hold numbers, or a dash for none."""
    columns = enumerate(zip(*lines, strict=True))
    return [i for i, cells in columns if i and all(map(_NUMBER.fullmatch, cells))]


def _chart_row(name: str, lines: Sequence[line_chart.Line], metric: str) -> Chart:
    """Chart a further metric of one row by training round, a line for every column."""
    series = []
    for (column, curve), look in zip(lines, make_looks(len(lines)), strict=True):
        series += make_series(curve, column, *look)
    spec = {"kind": "lines", "x": make_round_axis(), "y": make_axis(metric), "series": series}
    return Chart(name, spec | {"height": 230})


def _chart_column(outcome: Outcome, column: Column) -> Chart | None:
    """Chart the metric by training round, a line for every row; None before any run."""
    study = outcome.study
    percent = study.recipe.unit == "percent"
    factor, series = 100.0 if percent else 1.0, []
    for row, look in zip(study.rows, make_looks(len(study.rows)), strict=True):
        curve = outcome.cell(row.name, column.name).curve
        series += make_series([(round, factor * value) for round, value in curve], row.name, *look)
    if not series:
        return None
    target, metric = outcome.targets.get(column.name), study.metric(column)
    levels = []
    if target is not None:
        levels = [{"value": factor * target, "text": f"target {factor * target:.4g}"}]
    y = make_axis(f"{metric} (%)" if percent else metric, most=factor)
    spec = {"kind": "lines", "x": make_round_axis(), "y": y, "series": series, "levels": levels}
    several = any(outcome.cell(row.name, column.name).seeds > 1 for row in study.rows)
    return Chart(column.name, spec, "The mean over seeds." if several else "")
