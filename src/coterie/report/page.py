"""Makes the page of a run: one HTML file that needs no network."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from coterie.core.files import replace_durably
from coterie.core.formatting import counted, duration, format_bytes
from coterie.report import curves, tables
from coterie.report.chart import Chart
from coterie.report.partition_chart import chart_partition
from coterie.report.read import Run, read_run
from coterie.report.scatter import chart_embedding
from coterie.report.summary import Headline, make_headline

# The browser itself then refuses every request, whatever the script might ask for.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_SEAL = b"<!-- SHA-256 of the lines above: "
NO_SCRIPT = (
    '<noscript><p class="note">The charts need JavaScript; the tables do not.</p></noscript>'
)


def write_report(run: Path, out: Path | None = None, refresh: int = 0) -> Path:
    """Write the page of a run atomically (by default `report.html` in its folder).

    With `refresh` the browser loads it again every so many seconds, to watch a run.
    """
    out, read = out or run / "report.html", read_run(run)
    method, dataset = read.choice("method"), read.partition.dataset
    title = f"{method} on {dataset}" if method else dataset
    page = make_document(title, "\n".join(_list_parts(read, title)), refresh).encode()
    replace_durably(out, page + _seal(page))
    return out


def is_whole(path: Path) -> bool:
    """Whether the page of a run is as it was written; pages of older versions have only an end."""
    try:
        page = path.read_bytes()
    except OSError:
        return False
    body, tag, rest = page.rpartition(_SEAL)
    return tag + rest == _seal(body) if tag else page.endswith(b"</html>\n")


def _seal(page: bytes) -> bytes:
    """Write the hash of a page, for its last line."""
    return _SEAL + hashlib.sha256(page).hexdigest().encode() + b" -->\n"


def make_document(title: str, body: str, refresh: int = 0) -> str:
    """Wrap a body of HTML in a page with the style and the script that draws its figures."""
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    folder = resources.files("coterie.report")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("style.css", "draw.js"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n{again}'
        f"<title>{escape(title)} - Coterie</title>\n<style>\n{style}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _list_parts(run: Run, title: str) -> Iterator[str]:
    history, split = run.history, run.partition
    evaluate = run.table("evaluate")
    metric = str(evaluate.get("metric", "accuracy"))
    targets = [float(target) for target in evaluate.get("targets", ())]
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="soft">{escape(_describe(run))}<br>{escape(str(run.folder))}</p>'
    yield f'<dl class="tiles">{"".join(_list_tiles(make_headline(history, targets, metric)))}</dl>'
    notes = ("Rounds are counted from 1 here and from 0 in metrics.jsonl.", *run.notes)
    yield "".join(map(format_note, notes))
    yield NO_SCRIPT
    yield "<h2>Course of the run</h2>"
    accuracy = curves.chart_accuracy(history, metric, targets)
    if accuracy is None:
        yield format_note("No accuracy was measured in this run.")
    losses, traffic = curves.chart_losses(history), curves.chart_traffic(history, metric)
    charts = (accuracy, losses, traffic, curves.chart_participation(history))
    yield format_figures([chart for chart in charts if chart])
    yield from tables.list_clients(history, metric)
    yield from tables.list_classes(history)
    yield "<h2>Partition</h2>"
    held = chart_partition(split.clients, split.classes)
    yield format_figure(held) if held else format_note("There is no client.")
    if split.heterogeneity:
        yield "<h4>How much the clients differ</h4>"
        measures = [(name, f"{value:.4g}") for name, value in split.heterogeneity.items()]
        yield tables.format_table(measures, number=1)
    embedded, text = chart_embedding(run.folder, split)
    if text:
        yield f"<h2>Representations</h2>{format_note(text)}"
        yield format_figures(embedded)
    if others := curves.chart_others(history, metric):
        yield "<h2>Further metrics</h2>"
        yield format_figures(others, "charts small")
    yield from tables.list_losses(history)
    yield "<h2>Configuration</h2>"
    yield f'<div class="settings">{"".join(tables.list_settings(run.config))}</div>'
    yield from tables.list_digests(split.digest, history)


def _describe(run: Run) -> str:
    split = run.partition
    facts = [counted(len(run.history), "round"), counted(len(split.clients), "client")]
    facts.append(f"{len(split.classes):,} classes" if split.classes else "no labels")
    chosen = {table: run.choice(table) for table in ("objective", "partition", "net")}
    return " · ".join([*facts, *(f"{table} {kind}" for table, kind in chosen.items() if kind)])


def format_note(text: str) -> str:
    """Format a remark in small print."""
    return f'<p class="note">{escape(text)}</p>'


def _list_tiles(head: Headline) -> Iterator[str]:
    for name, measured in (("Final", head.final), ("Best", head.best)):
        value, round = "not measured", ""
        if measured is not None:
            value, round = f"{measured[0]:.4f}", f"in round {measured[1] + 1:,}"
        yield _tile(f"{name} {head.metric}", value, round)
    for target in head.targets:
        spent, more = "not reached", f"in {counted(head.rounds, 'round')}"
        if target.rounds is not None and target.bytes is not None:
            spent = counted(target.rounds, "round")
            more = f"{format_bytes(target.bytes)} both ways"
        yield _tile(f"To {head.metric} {target.value:g}", spent, more)
    yield _tile("Rounds", f"{head.rounds:,}", f"{head.skipped:,} skipped")
    yield _tile("Sent up", format_bytes(head.bytes_up), "by clients, to train")
    yield _tile("Sent down", format_bytes(head.bytes_down), "to clients, to train")
    if sent_apart := head.evaluation_bytes:
        yield _tile("Sent to evaluate", format_bytes(sent_apart), "both ways, counted apart")
    yield _tile("Time", duration(head.seconds), "sum over the rounds")


def _tile(name: str, value: str, more: str) -> str:
    small = f"<small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{small}</dd></div>"


def format_figures(charts: Sequence[Chart], kind: str = "charts") -> str:
    """Format several charts side by side, where there is room."""
    return f'<div class="{kind}">{"".join(map(format_figure, charts))}</div>'


def format_figure(chart: Chart) -> str:
    """Format a chart with its title; `draw.js` draws it."""
    text = json.dumps({"data": chart.data, "layout": chart.layout}, allow_nan=False)
    text = text.replace("<", "\\u003c")  # nothing in it can end the script element
    remark = format_note(chart.note) if chart.note else ""
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{remark}"
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" '
        f'style="height:{chart.height}px"></div>'
        f'<script type="application/json">{text}</script></figure>\n'
    )
