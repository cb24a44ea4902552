"""Makes one page for many runs: rows over seeds, compared with the first row."""

import os
import shlex
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from coterie.core.files import replace_durably
from coterie.core.formatting import counted, shorten_middle
from coterie.report import comparison_tables as tables
from coterie.report import comparison_words as say
from coterie.report.chart import allot_points
from coterie.report.comparison_charts import chart_clients, chart_rows, choose_looks
from coterie.report.document import (
    format_body,
    format_command,
    format_details,
    format_figure,
    format_note,
    format_tiles,
    make_document,
)
from coterie.report.rows import Member, RunRow
from coterie.report.tables import TableCell, format_table
from coterie.report.words import begin, name_metric

MARK = "<!-- A page of coterie report, for many runs -->"
_DRAWN = 16  # rows of a figure; more could not be told apart
_TITLE, _NAMED = 60, 5  # characters of row names in a title; names at most
_METRICS = 6  # that are tabulated
_LISTED = 600  # runs, or warnings, that are listed
_OPEN = 60  # runs whose list is open


def write_comparison(rows: Sequence[RunRow], out: Path, command: str = "") -> Path:
    """Write one page for the runs of some rows, atomically; `command` makes it anew."""
    title = _make_title(rows)
    head = "\n".join(_list_opening(rows, title))
    sections = [(name, text) for name, text in _list_sections(rows, out, command) if text]
    page = make_document(title, f"{MARK}\n{format_body(head, sections)}")
    replace_durably(out, page.encode(), remedy="; choose another --out")
    return out


def list_metrics(rows: Sequence[RunRow]) -> list[str]:
    """List the metrics by which rows are judged, that of the first row first."""
    return list(dict.fromkeys(row.metric for row in rows if row.metric))


def _make_title(rows: Sequence[RunRow]) -> str:
    names, more = [row.name for row in rows], ""
    if len(", ".join(names)) > _TITLE:
        names = list(dict.fromkeys(row.method for row in rows))
        more = f": {counted(len(rows), 'row')}"
    names = [shorten_middle(name, 40) for name in names]
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1:,} more"]
    data = list(say.list_data(rows))
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return (f"{listed} on {data[0]}" if len(data) == 1 and data[0] else listed) + more


def _list_opening(rows: Sequence[RunRow], title: str) -> Iterator[str]:
    """List what is above the sections: title, outcome, numbers, and what to look out for."""
    metrics = list_metrics(rows)
    yield '<p class="brand">Coterie</p>'
    yield f"<h1>{escape(title)}</h1>"
    outcome = say.describe_outcome(rows, metrics[0]) if metrics else "No run could be read."
    yield f'<p class="lead">{escape(outcome)}</p>'
    yield format_tiles(_list_tiles(rows, metrics))
    if worried := list(_list_worries(rows)):
        yield f'<div class="warning" role="note">{"".join(worried)}</div>'


def _list_tiles(rows: Sequence[RunRow], metrics: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    runs = [member for row in rows for member in row.members]
    seeds = {member.seed for member in runs}
    for metric in metrics[:1]:
        finals = say.list_finals(rows, metric)
        ranked = sorted(finals, key=lambda name: -fmean(finals[name].values()))
        for name in ranked[:3] if len(say.list_data(rows)) == 1 else ():
            value = fmean(finals[name].values())
            many = f", mean of {len(finals[name])}" if len(finals[name]) > 1 else ""
            yield (
                f"{name_metric(metric)} at the end{many}",
                f"{value:.4f}",
                shorten_middle(name, 40),
            )
    yield "rows", f"{len(rows):,}", "methods or settings"
    done = sum(member.finished and not member.failure for member in runs)
    yield "runs", f"{len(runs):,}", f"{done:,} of them finished"
    yield "seeds", f"{len(seeds):,}", f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else ""


def _list_worries(rows: Sequence[RunRow]) -> Iterator[str]:
    """List in a few lines what makes the comparison unsure."""
    members = [member for row in rows for member in row.members]
    failed = sum(bool(member.failure) for member in members)
    unfinished = sum(not m.finished and not m.failure for m in members)
    parts = [f"{counted(failed, 'run')} failed or cannot be read"] if failed else []
    parts += [f"{counted(unfinished, 'run')} not finished"] if unfinished else []
    if parts:
        yield f"<p><b>Not all is there.</b> {'; '.join(parts)}: see the warnings below.</p>"
    yield from (f"<p>{escape(text)}</p>" for text in say.list_caveats(rows))


def _list_sections(rows: Sequence[RunRow], out: Path, command: str) -> Iterator[tuple[str, str]]:
    metrics = list_metrics(rows)
    kept, several = metrics[:_METRICS], len(metrics) > 1
    drawn = _choose_drawn(rows, kept)
    looks = choose_looks(drawn)
    most = allot_points(3 * len(drawn) * len(kept))  # by round, data sent and time
    size = tables.LINES // max(1, len(kept))
    curves, numbers, clients, differences = [list[str]() for _ in range(4)]
    shown = set[str]()
    for metric in kept:
        targets = tables.list_targets(rows, metric)
        head = [f"<h3>{escape(begin(name_metric(metric)))}</h3>"] if several else []
        lacking = format_note(text) if (text := tables.describe_lacking(rows, metric)) else ""
        if chart := chart_rows(drawn, metric, targets, looks, most):
            curves += [format_figure(chart), lacking]
        numbers += [*head, tables.format_summary(rows, metric, targets, size), lacking]
        if (chart := chart_clients(drawn, metric, looks)) and chart.title not in shown:
            shown.add(chart.title)  # rows without the metric by client have the accuracy
            clients.append(format_figure(chart))
        if table := tables.format_differences(rows, metric, size):
            differences += [*head, table]
    if len(drawn) < len(rows):
        curves.insert(0, format_note(_describe_drawn(len(drawn), len(rows))))
    if metrics[_METRICS:]:
        numbers.append(format_note(f"Left out: {', '.join(map(name_metric, metrics[_METRICS:]))}."))
    yield "Curves", "\n".join(curves)
    yield "Table", "\n".join(numbers)
    yield "Clients", "\n".join(clients)
    yield "Differences by seed", "\n".join(differences)
    yield "Warnings", _show_warnings(rows)
    yield "What differs", tables.format_settings(rows)
    yield "Runs", _show_runs(rows, out)
    yield "Do it again", "\n".join(_show_again(rows, command))


def _choose_drawn(rows: Sequence[RunRow], metrics: Sequence[str]) -> list[RunRow]:
    """Choose the rows that are drawn: all, or the first and those that end best."""
    if len(rows) <= _DRAWN:
        return list(rows)
    metric = metrics[0] if metrics else ""
    ends = {row.name: list(row.list_finals(metric).values()) for row in rows[1:]}
    ranked = sorted(ends, key=lambda name: -fmean(ends[name]) if ends[name] else 1.0)
    chosen = {rows[0].name, *ranked[: _DRAWN - 1]}
    return [row for row in rows if row.name in chosen]


def _describe_drawn(drawn: int, rows: int) -> str:
    return f"Of {rows:,} rows the figures show {drawn}: the first, and those that end best."


def _show_warnings(rows: Sequence[RunRow]) -> str:
    warnings = list(say.list_warnings(rows))
    if not warnings:
        return format_note("None: all runs are finished, and every answer of a client was used.")
    more = len(warnings) - _LISTED
    note = format_note(f"{more:,} more are left out.") if more > 0 else ""
    return format_table(warnings[:_LISTED], ("row", "run", "what"), name="Warnings") + note


def _show_runs(rows: Sequence[RunRow], out: Path) -> str:
    """Show every run with a link to its own page and to its directory."""
    members = [(row, member) for row in rows for member in (*row.members, *row.set_aside)]
    lines = [_list_run(row, member, out) for row, member in members[:_LISTED]]
    head = ("row", "seed", "rounds", "state", "page", "directory")
    more = len(members) - _LISTED
    note = format_note(f"{more:,} more are left out.") if more > 0 else ""
    table = format_table(lines, head, {1, 2}, name="Runs") + note
    # a browser needs long to lay out a long table, unless it is folded
    return table if len(members) <= _OPEN else format_details(f"All {len(members):,} runs", table)


def _list_run(row: RunRow, member: Member, out: Path) -> list[str | TableCell]:
    rounds = len(member.run.history) if member.run else 0
    state = "failed" if member.failure else "finished" if member.finished else "unfinished"
    page = member.folder / "report.html"
    shown = TableCell("report.html", link=make_link(page, out)) if page.is_file() else TableCell("")
    folder = TableCell(
        shorten_middle(str(member.folder), 90), link=f"{make_link(member.folder, out)}/"
    )
    counts = (TableCell(str(n), n) for n in (member.seed, rounds))
    return [row.name, *counts, TableCell(state, kind=_KINDS.get(state, "")), shown, folder]


_KINDS = {"failed": "verdict bad", "unfinished": "verdict part"}


def make_link(path: Path, page: Path) -> str:
    """Make the address of a file as seen from a page, so that both can be moved together."""
    return quote(os.path.relpath(path.absolute(), page.absolute().parent))


def _show_again(rows: Sequence[RunRow], command: str) -> Iterator[str]:
    if command:
        yield format_command(command)
        yield format_note(
            "This command makes the page anew. Runs that are finished are kept, and read again."
        )
    first = rows[0].members[0].folder / "config.toml"
    one = f"coterie run {shlex.quote(str(first))} --out runs/again"
    yield format_details(
        "One run again",
        format_command(one)
        + format_note("Any run of the list above: its directory has the whole configuration."),
    )
