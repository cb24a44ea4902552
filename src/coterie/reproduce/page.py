"""Writes the files of an outcome: `outcome.json`, `table.md`, `report.html`, curves as SVG."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from coterie.core.files import replace_durably
from coterie.report import line_chart
from coterie.report.chart import (
    Chart,
    allot_points,
    describe_thinning,
    make_axis,
    make_looks,
    make_round_axis,
    make_series,
)
from coterie.report.document import (
    format_body,
    format_command,
    format_figures,
    format_note,
    make_document,
)
from coterie.reproduce import page_tables
from coterie.reproduce.further_curves import Rows, read_rows
from coterie.reproduce.recipe import Column
from coterie.reproduce.scores import Outcome
from coterie.reproduce.tables import CLAIMS, introduce, list_sections, to_json, to_markdown

_BESIDE = 5  # rows up to which two charts are beside each other


def write_outcome(outcome: Outcome, out: Path) -> Path:
    """Write all files of an outcome, each atomically; return their folder."""
    study, folder = outcome.study, out / outcome.study.folder
    replace_durably(folder / "outcome.json", to_json(outcome))
    replace_durably(folder / "table.md", to_markdown(outcome).encode())
    further = {metric: read_rows(outcome, metric) for metric in study.recipe.draw}
    page = folder / "report.html"
    text = make_document(study.title, _make_body(outcome, further, page))
    replace_durably(page, text.encode())
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


def _make_body(outcome: Outcome, further: Mapping[str, Rows], page: Path) -> str:
    study = outcome.study
    head = ['<p class="brand">Coterie</p>', f"<h1>{escape(study.title)}</h1>"]
    if text := page_tables.describe_verdicts(outcome):
        head.append(f'<p class="lead">{escape(text)}</p>')
    head += [f'<p class="soft">{escape(line.replace("`", ""))}</p>' for line in introduce(outcome)]
    sections = [section for section in _list_sections(outcome, further, page) if section[1]]
    return format_body("\n".join(head), sections)


def _list_sections(
    outcome: Outcome, further: Mapping[str, Rows], page: Path
) -> Iterator[tuple[str, str]]:
    yield "The paper and ours", page_tables.format_beside(outcome)
    sections = list(list_sections(outcome))
    claims = next((section for section in sections if section.title == CLAIMS), None)
    if claims is not None:
        sections.remove(claims)
        yield CLAIMS, page_tables.format_section(claims)
    yield "Curves", _show_curves(outcome)
    for metric, rows in further.items():
        if rows:
            note = format_note("Each row has a scale of its own: values of rows may not compare.")
            most = allot_points(sum(len(lines) for _, lines in rows))
            charts = [_chart_row(*row, metric, most) for row in rows]
            small = format_figures(charts, "charts small")
            yield f"{metric} by row", note + small
    for section in sections:
        if section.head:
            yield section.title, page_tables.format_section(section)
        else:
            notes = "".join(format_note(line) for (line,) in section.lines)
            yield section.title, notes or format_note("None.")
    yield "Runs", page_tables.format_runs(outcome, page)
    again = format_command(outcome.study.command)
    yield "Do it again", again + format_note("Runs that are finished are kept, and read again.")


def _show_curves(outcome: Outcome) -> str:
    study = outcome.study
    charts = [drawn for column in study.columns if (drawn := _chart_column(outcome, column))]
    if not charts:
        return ""
    # with many rows the legend is long, and the chart takes the whole width
    groups = [[each] for each in charts] if len(study.rows) > _BESIDE else [charts]
    return "\n".join(map(format_figures, groups))


def _chart_row(name: str, lines: Sequence[line_chart.Line], metric: str, most: int) -> Chart:
    """Chart a further metric of one row by training round, a line for every column."""
    series = []
    for (column, curve), look in zip(lines, make_looks(len(lines)), strict=True):
        series += make_series(curve, column, *look, most=most)
    spec = {"kind": "lines", "x": make_round_axis(), "y": make_axis(metric), "series": series}
    return Chart(name, spec | {"height": 230})


def _chart_column(outcome: Outcome, column: Column) -> Chart | None:
    """Chart the metric by training round, a line for every row; None before any run."""
    study = outcome.study
    percent = study.recipe.unit == "percent"
    factor, series = 100.0 if percent else 1.0, []
    most, longest = allot_points(len(study.rows) * len(study.columns)), 0
    for row, look in zip(study.rows, make_looks(len(study.rows)), strict=True):
        cell = outcome.cell(row.name, column.name)
        points = [(round, factor * value) for round, value in cell.curve]
        band = [(factor * low, factor * high) for low, high in cell.band]
        series += make_series(points, row.name, *look, band, most)
        longest = max(longest, len(points))
    if not series:
        return None
    target, metric = outcome.targets.get(column.name), study.metric(column)
    levels = []
    if target is not None:
        levels = [{"value": factor * target, "text": f"target {factor * target:.4g}"}]
    y = make_axis(f"{metric} (%)" if percent else metric, most=factor)
    spec = {"kind": "lines", "x": make_round_axis(), "y": y, "series": series, "levels": levels}
    several = any(outcome.cell(row.name, column.name).seeds > 1 for row in study.rows)
    note = "A line is the mean over seeds, its band goes from the lowest to the highest seed."
    note = (note if several else "") + describe_thinning(longest, most)
    return Chart(column.name, spec, note.strip())
