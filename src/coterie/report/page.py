"""The page of a run: one HTML file that needs no network."""

import json
import os
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from coterie.core.errors import CheckpointError
from coterie.core.formatting import counted, duration, size
from coterie.report import curves, tables
from coterie.report.chart import Chart
from coterie.report.embedding import embedding
from coterie.report.partition_chart import partition
from coterie.report.read import Run, read_run
from coterie.report.summary import Headline, headline

# The browser itself then refuses every request, whatever the script might ask for.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def write_report(run: Path, out: Path | None = None, refresh: int = 0) -> Path:
    """Write the page of a run (`report.html` in its folder); it is whole or not there.

    With `refresh` the browser loads it again every so many seconds, to watch a run.
    """
    out = out or run / "report.html"
    page = render(read_run(run), refresh).encode()
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(page)
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot write {out}: {error.strerror or error}") from error
    return out


def render(run: Run, refresh: int = 0) -> str:
    """The whole page; it asks to be loaded again after `refresh` seconds, if any."""
    method, dataset = run.choice("method"), run.partition.dataset
    title = f"{method} on {dataset}" if method else dataset
    return document(title, "\n".join(_body(run, title)), refresh)


def document(title: str, body: str, refresh: int = 0) -> str:
    """A page around a body of HTML, with the style and the script that draws its figures."""
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n{again}'
        f"<title>{escape(title)} - Coterie</title>\n<style>\n{_beside('style.css')}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>\n{_beside('draw.js')}</script>\n</body>\n</html>\n"
    )


def _beside(name: str) -> str:
    """A file that lies beside this module."""
    return resources.files("coterie.report").joinpath(name).read_text(encoding="utf-8")


def _body(run: Run, title: str) -> Iterator[str]:
    history, split = run.history, run.partition
    evaluate = run.table("evaluate")
    metric = str(evaluate.get("metric", "accuracy"))
    targets = [float(target) for target in evaluate.get("targets", ())]
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="soft">{escape(_facts(run))}<br>{escape(str(run.folder))}</p>'
    yield f'<dl class="tiles">{"".join(_tiles(headline(history, targets, metric)))}</dl>'
    notes = ("Rounds are counted from 1 here and from 0 in metrics.jsonl.", *run.notes)
    yield "".join(map(note, notes))
    yield f"<noscript>{note('The charts need JavaScript; the tables do not.')}</noscript>"
    yield "<h2>Course of the run</h2>"
    accuracy = curves.accuracy(history, metric, targets)
    if accuracy is None:
        yield note("No accuracy was measured in this run.")
    further = curves.losses(history), curves.traffic(history, metric), curves.participation(history)
    yield figures([chart for chart in (accuracy, *further) if chart])
    yield "<h2>Partition</h2>"
    held = partition(split.clients, split.classes)
    yield figure(held) if held else note("No client holds a labelled class.")
    if split.heterogeneity:
        yield "<h4>How much the clients differ</h4>"
        yield tables.table([(k, f"{v:.4g}") for k, v in split.heterogeneity.items()], number=1)
    drawn, said = embedding(run.folder)
    if said:
        yield f"<h2>Representations</h2>{note(said)}"
        yield figures(drawn)
    if others := curves.others(history, metric):
        yield "<h2>Further metrics</h2>"
        yield figures(others, "charts small")
    yield from tables.losses(history)
    yield "<h2>Configuration</h2>"
    yield f'<div class="settings">{"".join(tables.settings(run.config))}</div>'
    yield from tables.digests(split.digest, history)


def _facts(run: Run) -> str:
    split = run.partition
    facts = [counted(len(run.history), "round"), counted(len(split.clients), "client")]
    facts.append(f"{split.classes:,} classes")
    chosen = {table: run.choice(table) for table in ("objective", "partition", "net")}
    return " · ".join([*facts, *(f"{table} {kind}" for table, kind in chosen.items() if kind)])


def note(text: str) -> str:
    """A remark in small letters."""
    return f'<p class="note">{escape(text)}</p>'


def _tiles(head: Headline) -> Iterator[str]:
    for word, found in (("Final", head.final), ("Best", head.best)):
        value = "not measured" if found is None else f"{found[0]:.4f}"
        yield _tile(f"{word} {head.metric}", value, f"in round {found[1] + 1:,}" if found else "")
    for target in head.targets:
        name = f"To {head.metric} {target.value:g}"
        if target.rounds is None or target.bytes is None:
            yield _tile(name, "not reached", f"in {counted(head.rounds, 'round')}")
        else:
            yield _tile(name, counted(target.rounds, "round"), f"{size(target.bytes)} both ways")
    yield _tile("Rounds", f"{head.rounds:,}", f"{head.skipped:,} skipped")
    yield _tile("Sent up", size(head.bytes_up), "by clients, to train")
    yield _tile("Sent down", size(head.bytes_down), "to clients, to train")
    if head.evaluation_bytes:
        yield _tile("Sent to evaluate", size(head.evaluation_bytes), "both ways, counted apart")
    yield _tile("Time", duration(head.seconds), "sum over the rounds")


def _tile(name: str, value: str, more: str) -> str:
    small = f"<small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{small}</dd></div>"


def figures(charts: Sequence[Chart], kind: str = "charts") -> str:
    """Several charts side by side, where there is room."""
    return f'<div class="{kind}">{"".join(map(figure, charts))}</div>'


def figure(chart: Chart) -> str:
    """A chart with its title; `draw.js` draws it."""
    text = json.dumps({"data": chart.data, "layout": chart.layout}, allow_nan=False)
    text = text.replace("<", "\\u003c")  # nothing in it can end the script element
    remark = note(chart.note) if chart.note else ""
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{remark}"
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" '
        f'style="height:{chart.height}px"></div>'
        f'<script type="application/json">{text}</script></figure>\n'
    )
