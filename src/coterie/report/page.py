"""Makes the page of a run: one HTML file that needs no network."""

import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

from coterie.core import files
from coterie.core.errors import CheckpointError
from coterie.core.files import RESUME, disk_errors, replace_durably
from coterie.core.formatting import counted, duration, format_bytes
from coterie.report import client_charts, curves, tables, words
from coterie.report.document import (
    format_body,
    format_command,
    format_details,
    format_figure,
    format_figures,
    format_note,
    format_tiles,
    make_document,
)
from coterie.report.partition_chart import chart_partition, format_measures
from coterie.report.read import Run, read_run
from coterie.report.scatter import chart_embedding
from coterie.report.summary import Headline, describe_result, make_headline

SEAL = b"<!-- SHA-256 of the rounds: "
_UNFINISHED = b"<!-- The run was not finished. -->\n"
_GIVEN = "given"  # `data.name` of samples that a Python program passed
_ENVIRONMENT = {
    "coterie": "Coterie",
    "torch": "PyTorch",
    "machine": "processor",
    "vectors": "vector instructions",
    "kernels": "kernels",
    "onednn": "oneDNN",
    "device": "device",
    "threads": "threads",
}


def write_report(
    run: Path,
    out: Path | None = None,
    failure: str = "",
    finished: bool = True,
    remedy: str = RESUME,
) -> Path:
    """Write the page of a run atomically (by default `report.html` in its folder).

    `failure` says why the run ended early: the page then shows it, and does not mark the run as
    finished. `remedy` is what to do if the page cannot be written.
    """
    page = make_page(run, failure=failure, finished=finished and not failure).encode()
    out = out or run / "report.html"
    replace_durably(out, page + (_UNFINISHED if failure else _seal(page, run)), remedy)
    return out


def make_page(run: Path, live: bool = False, failure: str = "", finished: bool = True) -> str:
    """Make the page of a run; a `live` one is served, and follows the run while it grows.

    The page of a run that is not `finished` says that its results are those so far.
    """
    read = read_run(run)
    title = words.name_run(read.choice("method"), read.choice("objective"), read.partition.dataset)
    evaluate = read.table("evaluate")
    metric = curves.choose_metric(read.history, str(evaluate.get("metric", "accuracy")))
    targets = [float(target) for target in evaluate.get("targets", ())]
    head = replace(make_headline(read.history, targets, metric), finished=finished)
    sections = [(name, text) for name, text in _list_sections(read, head) if text]
    body = format_body("\n".join(_list_opening(read, head, title, failure)), sections)
    return make_document(title, body, live)


def marks_end(run: Path) -> bool:
    """Whether a run has the page that is written at its end, the last of its files."""
    try:
        return not (run / "report.html").read_bytes().endswith(_UNFINISHED)
    except OSError:
        return False


def remove_unfinished(run: Path) -> None:
    """Remove the page that a run left when it failed, because it is resumed."""
    path = run / "report.html"
    if path.is_file() and not marks_end(run):
        with disk_errors(path):
            files.remove_file(path)


def is_whole(run: Path) -> bool:
    """Whether `report.html` of a run is as it was written, from the rounds that are there now.

    Pages of older versions have no hashes, only an end.
    """
    try:
        page = (run / "report.html").read_bytes()
        body, tag, rest = page.rpartition(SEAL)
        return tag + rest == _seal(body, run) if tag else page.endswith(b"</html>\n")
    except (OSError, CheckpointError):
        return False


def _seal(page: bytes, run: Path) -> bytes:
    """Write the last line of a page: the hashes of the rounds and of the page itself."""
    rounds = run / "metrics.jsonl"
    data = files.read(rounds) if rounds.exists() else b""
    hashes = [hashlib.sha256(part).hexdigest() for part in (data, page)]
    return SEAL + b"%b, of the lines above: %b -->\n" % tuple(map(str.encode, hashes))


def _list_opening(run: Run, head: Headline, title: str, failure: str) -> Iterator[str]:
    """List what is above the sections: title, result, numbers, warnings."""
    baseline = run.baseline if run.baseline_metric == head.metric else {}
    yield '<p class="brand">Coterie</p>'
    yield f"<h1>{escape(title)}</h1>"
    text = describe_result(head, title, len(run.partition.clients), baseline)
    yield f'<p class="lead">{escape(text)}</p>'
    if failure:
        yield (
            '<div class="warning" role="note"><p><b>The run ended before its last round.</b> '
            f"{escape(failure)}</p></div>"
        )
    yield format_tiles(_list_tiles(head, run.table("privacy").get("delta")))
    if trouble := tables.describe_trouble(run.history):
        reasons = "".join(tables.list_losses(run.history))
        yield (
            f'<div class="warning" role="note"><p><b>Not every answer could be used.</b> '
            f"{escape(trouble)}</p>{format_details('Reasons', reasons)}</div>"
        )
    yield "".join(map(format_note, run.notes))


def _list_tiles(head: Headline, delta: float | None = None) -> Iterator[tuple[str, str, str]]:
    name = words.name_metric(head.metric)
    last, best = ("at the end", "at best") if head.finished else ("so far", "at best so far")
    for when, measured in ((last, head.final), (best, head.best)):
        if measured is not None:
            yield f"{name} {when}", f"{measured[0]:.4f}", f"round {measured[1] + 1:,}"
    for target in head.targets:
        spent, more = "not reached", f"in {head.count_rounds()}"
        if target.rounds is not None and target.bytes is not None:
            spent = counted(target.rounds, "round")
            more = f"{format_bytes(target.bytes)} both ways"
        yield f"to {name} {target.value:g}", spent, more
    if head.epsilon is not None and delta:
        yield "epsilon", f"{head.epsilon:.4g}", f"at delta {delta:g}"
    yield "rounds", f"{head.rounds:,}", f"{head.skipped:,} skipped"
    up = format_bytes(head.bytes_up)
    yield "sent, to train", format_bytes(head.bytes_up + head.bytes_down), f"{up} of it up"
    yield "time", duration(head.seconds), "sum over the rounds"


def _list_sections(run: Run, head: Headline) -> Iterator[tuple[str, str]]:
    history, split, metric = run.history, run.partition, head.metric
    yield "Course", "\n".join(_show_course(run, head))
    yield "Clients", "\n".join(client_charts.list_clients(run, metric))
    yield "Classes", "\n".join(client_charts.list_classes(history, split.classes))
    yield "Partition", "\n".join(_show_partition(run))
    embedded, text = chart_embedding(run.folder, split)
    figure = format_figure(embedded) if embedded else ""
    yield "Representations", f"{format_note(text)}{figure}" if text else ""
    yield "Losses and diagnostics", "\n".join(_show_diagnostics(run, metric))
    yield "What left the clients", "\n".join(_show_traffic(run, head))
    yield "Run it again", "\n".join(_show_again(run))
    settings = f'<div class="settings">{"".join(tables.list_settings(run.config))}</div>'
    digests = "".join(tables.list_digests(split.digest, history))
    yield (
        "Configuration and digests",
        format_details("Configuration, every key written out", settings)
        + format_details("Digests, by which two runs can be compared", digests),
    )


def _show_course(run: Run, head: Headline) -> Iterator[str]:
    history = run.history
    baseline = run.baseline if run.baseline_metric == head.metric else {}
    targets = [target.value for target in head.targets]
    main = curves.chart_metric(history, head.metric, targets, baseline)
    yield format_figure(main) if main else format_note("Nothing was measured on test data.")
    once = [row for row in curves.list_constant(history, head.metric) if row[2] == 1]
    shares = [(words.name_metric(n), f"{v:.4f}", n) for n, v, _ in once if words.is_share(n)]
    if shares and len(history) > 1:
        yield "<h3>Measured once, after the last round</h3>"
        yield tables.format_table(shares, ("measure", "value", "metric"), numbers={1})
    if drawn := curves.chart_participation(history):
        yield format_figure(drawn)


def _show_partition(run: Run) -> Iterator[str]:
    split = run.partition
    held = chart_partition(split.clients, split.classes)
    yield format_figure(held) if held else format_note("There is no client.")
    if split.heterogeneity:
        yield "<h3>How much the clients differ</h3>"
        measures = dict(split.heterogeneity)
        yield format_measures(measures, len(split.clients), len(split.classes))


def _show_diagnostics(run: Run, metric: str) -> Iterator[str]:
    history = run.history
    large = [curves.chart_losses(history), curves.chart_terms(history)]
    if drawn := [chart for chart in large if chart]:
        yield format_figures(drawn)
    if others := curves.chart_others(history, metric):
        yield format_figures(others, "charts small")
    constant = [
        f"{name} {value:,.4g}"
        for name, value, times in curves.list_constant(history, metric)
        if times > 1 or not words.is_share(name)
    ]
    if constant:
        yield format_note(f"The same whenever it was measured: {', '.join(constant)}.")


def _show_traffic(run: Run, head: Headline) -> Iterator[str]:
    if run.leaves:
        yield f"<p>What leaves a client: <b>{escape(run.leaves)}</b>.</p>"
    answers = sum(len(e.cohort) - len(e.lost) for e in run.history)
    each = format_bytes(head.bytes_up / answers) if answers else ""
    rows = [("up, to train", format_bytes(head.bytes_up), f"{each} an answer" if each else "")]
    rows.append(("down, to train", format_bytes(head.bytes_down), ""))
    if sent := head.evaluation_bytes:
        rows.append(("both ways, to evaluate", format_bytes(sent), "counted apart"))
    yield tables.format_table(rows, numbers={1})
    if drawn := curves.chart_traffic(run.history):
        yield format_figure(drawn)


def _show_again(run: Run) -> Iterator[str]:
    config = shlex.quote(str(run.folder / "config.toml"))
    if (run.folder / "federation.json").exists():
        yield "<p>This was a federation of sites: start the server with this configuration.</p>"
    elif run.table("data").get("name") == _GIVEN or "object:" in str(run.config):
        yield "<p>A Python program passed data or parts: call it again with the same ones.</p>"
    else:
        yield format_command(f"coterie run {config} --out runs/again")
        same = "The same versions on the same type of machine give the same bits."
        drawn = "Clients and noise are drawn anew in each private run: no two are alike."
        yield format_note(drawn if run.table("privacy").get("clip") else same)
    if run.environment:
        known = [(_ENVIRONMENT.get(key, key), value) for key, value in run.environment.items()]
        yield tables.format_table(sorted(known))
    yield format_note(f"Run directory: {run.folder}")
    yield format_note("Rounds are counted from 1 here and from 0 in metrics.jsonl.")
