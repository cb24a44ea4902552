"""Reads a run directory and writes its report: one HTML file that needs no network."""

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from plotly.offline import get_plotlyjs

from coterie.core.errors import CheckpointError, CoterieError, DataError
from coterie.report import figures
from coterie.report.figures import MEGABYTE, Chart, Headline, Holder, Row, counted, headline

_REASONS = 200  # rows of the table of losses
_NAMED = 8  # rounds or clients that a cell names before it only counts
_FIELDS = tuple(field.name for field in fields(Row))
_T = TypeVar("_T")

# Colours are looked up when a chart is drawn (see figures.py). A printer gets the light theme and
# a width that fits its paper; a finger keeps its swipe for scrolling.
_SCRIPT = """
(() => {
  const root = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)');
  const touch = !matchMedia('(any-hover: hover)').matches;
  const draw = width => {
    const css = getComputedStyle(root);
    const colour = v => typeof v === 'string' && v[0] === '@'
      ? css.getPropertyValue('--' + v.slice(1)).trim() : v;
    const themed = (key, v) => key === 'colorscale' ? v.map(([at, c]) => [at, colour(c)])
      : /color$/.test(key) ? colour(v) : v;
    for (const div of document.querySelectorAll('.chart')) {
      const { data, layout } = JSON.parse(div.nextElementSibling.textContent, themed);
      if (width) Object.assign(layout, { width, autosize: false });
      if (touch) layout.dragmode = false;
      Plotly.react(div, data, layout, {
        responsive: true, displayModeBar: touch ? false : 'hover',
        modeBarButtons: [['toImage', 'resetScale2d']], displaylogo: false,
      });
    }
  };
  draw();
  dark.addEventListener('change', () => draw());
  addEventListener('beforeprint', () => { root.classList.add('printing'); draw(680); });
  addEventListener('afterprint', () => { root.classList.remove('printing'); draw(); });
})();
"""
# The browser itself then refuses every request, whatever the script might ask for.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


@dataclass(frozen=True)
class Run:
    """What the files of a run directory say."""

    folder: Path
    config: Mapping[str, Any]
    dataset: str
    digest: str
    classes: int
    clients: tuple[Holder, ...]
    heterogeneity: Mapping[str, float]
    history: tuple[Row, ...]
    notes: tuple[str, ...]  # what was left out, in sentences


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


def read_run(folder: Path) -> Run:
    """Read `config.toml`, `partition.json` and `metrics.jsonl`."""
    config = _read(folder / "config.toml", tomllib.loads, DataError)
    split = _read(folder / "partition.json", _parse_partition, DataError)
    history, notes = _read(folder / "metrics.jsonl", _parse_metrics, CheckpointError)
    return Run(folder=folder, config=config, history=history, notes=notes, **split)


def _read(path: Path, parse: Callable[[str], _T], kind: type[CoterieError]) -> _T:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror or error}") from error
    except KeyError as error:
        raise kind(f"{path} cannot be used: the key {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise kind(f"{path} cannot be used: {reason}") from error


def _parse_partition(text: str) -> dict[str, Any]:
    found = json.loads(text)
    classes = int(found["classes"])
    clients = tuple(
        Holder(str(c["name"]), int(c["train"]), int(c["test"]), tuple(map(int, c["classes"])))
        for c in found["clients"]
    )
    for client in clients:
        if len(client.classes) != classes:
            raise ValueError(
                f"client {client.name!r} counts {len(client.classes)} classes, not {classes}"
            )
    unlike = {str(k): float(v) for k, v in (found.get("heterogeneity") or {}).items()}
    return {
        "dataset": str(found["dataset"]),
        "digest": str(found["digest"]),
        "classes": classes,
        "clients": clients,
        "heterogeneity": {k: v for k, v in unlike.items() if math.isfinite(v)},
    }


def _parse_metrics(text: str) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rounds; a last line that a killed run left half-written is not one."""
    rows: list[Row] = []
    notes: list[str] = []
    dropped = 0
    for number, line in enumerate(lines := text.splitlines(), start=1):
        try:
            found = json.loads(line)
            every = {str(k): float(v) for k, v in found["metrics"].items()}
            _check(found)
        except (ValueError, TypeError, AttributeError) as error:
            if rows and number == len(lines) and not text.endswith("\n"):
                notes.append("The last line of metrics.jsonl is incomplete and was left out.")
                break
            raise ValueError(f"line {number}: {error}") from error
        usable = {name: value for name, value in every.items() if math.isfinite(value)}
        dropped += len(every) - len(usable)
        rows.append(Row(**{name: found[name] for name in _FIELDS} | {"metrics": usable}))
    if not rows:
        raise ValueError("it holds no finished round yet")
    if dropped:
        notes.append(f"{dropped:,} values that are not finite numbers were left out.")
    return tuple(rows), tuple(notes)


def _check(found: Mapping[str, Any]) -> None:
    """Refuse a line whose values could not be drawn."""
    for name, value in found.items():
        if name in ("lost", "rejected"):
            right = isinstance(value, dict)
        elif name == "cohort":
            right = isinstance(value, list)
        elif name == "round" or name.endswith(("bytes_up", "bytes_down")):
            right = isinstance(value, int)
        else:
            right = name != "seconds" or (isinstance(value, int | float) and math.isfinite(value))
        if not right:
            raise ValueError(f"{name} is {value!r}")


def render(run: Run, refresh: int = 0) -> str:
    """The whole page; it asks to be loaded again after `refresh` seconds, if any."""
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    evaluate = _table_of(run.config, "evaluate")
    metric = str(evaluate.get("metric", "accuracy"))
    targets = [float(target) for target in evaluate.get("targets", ())]
    method = _kind(run.config, "method")
    title = f"{method} on {run.dataset}" if method else run.dataset
    css = resources.files("coterie.report").joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(_body(run, title, headline(run.history, targets, metric), targets))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n{again}'
        f"<title>{escape(title)} - Coterie</title>\n<style>\n{css}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _body(run: Run, title: str, head: Headline, targets: Sequence[float]) -> Iterator[str]:
    history = run.history
    facts = [counted(head.rounds, "round"), counted(len(run.clients), "client")]
    facts.append(f"{run.classes:,} classes")
    chosen = {table: _kind(run.config, table) for table in ("objective", "partition", "net")}
    facts += [f"{table} {kind}" for table, kind in chosen.items() if kind]
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="soft">{escape(" · ".join(facts))}<br>{escape(str(run.folder))}</p>'
    yield f'<dl class="tiles">{"".join(_tiles(head))}</dl>'
    notes = ("Rounds are counted from 1 here and from 0 in metrics.jsonl.", *run.notes)
    yield "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    yield '<noscript><p class="note">The charts need JavaScript; the tables do not.</p></noscript>'
    yield "<h2>Course of the run</h2>"
    main = [
        figures.accuracy(history, head.metric, targets),
        figures.losses(history),
        figures.traffic(history, head.metric),
        figures.participation(history),
    ]
    if main[0] is None:
        yield '<p class="note">No accuracy was measured in this run.</p>'
    yield f'<div class="charts">{"".join(_figure(c) for c in main if c)}</div>'
    yield "<h2>Partition</h2>"
    split = figures.partition(run.clients, run.classes)
    yield _figure(split) if split else '<p class="note">No client holds a labelled class.</p>'
    if run.heterogeneity:
        yield "<h4>How much the clients differ</h4>"
        yield _table((), [(k, f"{v:.4g}") for k, v in run.heterogeneity.items()], number=1)
    if further := figures.others(history, head.metric):
        yield "<h2>Further metrics</h2>"
        yield f'<div class="charts small">{"".join(map(_figure, further))}</div>'
    yield from _losses(history)
    yield "<h2>Configuration</h2>"
    yield f'<div class="settings">{"".join(_settings(run.config))}</div>'
    yield from _digests(run)


def _tiles(head: Headline) -> Iterator[str]:
    for word, found in (("Final", head.final), ("Best", head.best)):
        value = "not measured" if found is None else f"{found[0]:.4f}"
        yield _tile(f"{word} {head.metric}", value, f"in round {found[1] + 1:,}" if found else "")
    for target in head.targets:
        name = f"To {head.metric} {target.value:g}"
        if target.rounds is None or target.bytes is None:
            yield _tile(name, "not reached", f"in {counted(head.rounds, 'round')}")
        else:
            yield _tile(name, counted(target.rounds, "round"), f"{_size(target.bytes)} both ways")
    yield _tile("Rounds", f"{head.rounds:,}", f"{head.skipped:,} skipped")
    yield _tile("Sent up", _size(head.bytes_up), "by clients, to train")
    yield _tile("Sent down", _size(head.bytes_down), "to clients, to train")
    if head.evaluation_bytes:
        yield _tile("Sent to evaluate", _size(head.evaluation_bytes), "both ways, counted apart")
    yield _tile("Time", _time(head.seconds), "sum over the rounds")


def _tile(name: str, value: str, more: str) -> str:
    small = f"<small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{small}</dd></div>"


def _figure(chart: Chart) -> str:
    text = json.dumps({"data": chart.data, "layout": chart.layout}, allow_nan=False)
    text = text.replace("<", "\\u003c")  # nothing in it can end the script element
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{note}"
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" '
        f'style="height:{chart.height}px"></div>'
        f'<script type="application/json">{text}</script></figure>\n'
    )


def _losses(history: Sequence[Row]) -> Iterator[str]:
    """Lost and rejected, one line for every reason."""
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for row in history:
        for kind, found in (("lost", row.lost), ("rejected", row.rejected)):
            for client, reason in found.items():
                groups.setdefault((kind, str(reason)), []).append((row.round, str(client)))
    skipped = [str(row.round + 1) for row in history if row.skipped]
    if not groups and not skipped:
        return
    yield "<h2>Lost, rejected, skipped</h2>"
    if skipped:
        yield f'<p class="note">Skipped rounds: {escape(_some(skipped))}.</p>'
    if groups:
        often = sorted(groups.items(), key=lambda item: -len(item[1]))
        rows = [
            (
                kind,
                reason,
                f"{len(cases):,}",
                _some([str(round + 1) for round, _ in cases]),
                _some([client for _, client in cases]),
            )
            for (kind, reason), cases in often[:_REASONS]
        ]
        yield _table(("what", "reason", "times", "rounds", "clients"), rows, number=2)
    if len(groups) > _REASONS:
        rest = len(groups) - _REASONS
        yield f'<p class="note">{rest:,} reasons that were rarer are left out.</p>'


def _settings(config: Mapping[str, Any]) -> Iterator[str]:
    loose = {key: value for key, value in config.items() if not isinstance(value, dict)}
    tables = {"": loose} if loose else {}
    for name, values in (tables | {k: v for k, v in config.items() if k not in loose}).items():
        if rows := list(_flat(values)):
            yield _table((), rows, caption=name)


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            plain = isinstance(value, str)
            yield f"{above}{key}", value if plain else json.dumps(value, default=str)


def _digests(run: Run) -> Iterator[str]:
    last = run.history[-1]
    yield "<h2>Digests</h2>"
    rows = [
        ("partition", run.digest),
        (f"server's state after round {last.round + 1}", last.digest),
        (f"clients' states after round {last.round + 1}", last.states),
    ]
    yield _table((), rows)
    yield "<details><summary>Digests of every round</summary>"
    every = [(str(row.round + 1), row.digest, row.states) for row in run.history]
    yield _table(("round", "server's state", "clients' states"), every)
    yield "</details>"


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], number: int = -1, caption: str = ""
) -> str:
    """A table of text; the first column holds names, the column `number` numbers."""
    kinds = {0: ' class="name"', number: ' class="number"'}
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    top = f"<thead><tr>{top}</tr></thead>" if head else ""
    body = ""
    for row in rows:
        cells = (f"<td{kinds.get(i, '')}>{escape(cell)}</td>" for i, cell in enumerate(row))
        body += f"<tr>{''.join(cells)}</tr>\n"
    return f'<div class="table"><table>{title}{top}<tbody>{body}</tbody></table></div>\n'


def _table_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _kind(config: Mapping[str, Any], name: str) -> str:
    """What a table of the configuration chooses, for example which method."""
    table = _table_of(config, name)
    return next((str(table[k]) for k in ("kind", "name", "backbone") if k in table), "")


def _some(words: Sequence[str]) -> str:
    """The first few of the words, each once, and how many more there are."""
    once = list(dict.fromkeys(words))
    more = f" and {len(once) - _NAMED:,} more" if len(once) > _NAMED else ""
    return ", ".join(once[:_NAMED]) + more


def _size(count: int) -> str:
    if count >= 1000 * MEGABYTE:
        return f"{count / MEGABYTE / 1000:,.2f} GB"
    return f"{count / MEGABYTE:,.1f} MB" if count >= MEGABYTE else f"{count / 1000:,.1f} kB"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"
