"""Puts a body of HTML, the style and the script that draws figures into one file."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from coterie.report.chart import Chart

# The browser itself then refuses every request, whatever the script might ask for.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
# A page that follows a run may ask the server that it came from, and nobody else.
LIVE_POLICY = f"{_POLICY}; connect-src 'self'; base-uri 'none'; form-action 'none'"
_SCRIPTS = (
    *("draw_base.js", "draw_lines.js", "draw_grid.js", "draw_strips.js", "draw_points.js"),
    *("draw.js", "sort.js"),
)
_LIVE_SCRIPT = "live.js"
_NO_ICON = '<link rel="icon" href="data:,">\n'  # else browsers ask the server for one
NO_SCRIPT = (
    '<noscript><p class="note">The figures need JavaScript; the tables do not.</p></noscript>'
)
_ACROSS = 6  # tiles on a line, at most
# titles of sections with their texts, in order
Sections = Sequence[tuple[str, str]]


def make_document(title: str, body: str, live: bool = False) -> str:
    """Wrap a body of HTML in a page with the style and the script that draws its figures.

    A `live` page asks the server that it came from whether the run has grown.
    """
    folder = resources.files("coterie.report")
    names = (*_SCRIPTS, _LIVE_SCRIPT) if live else _SCRIPTS
    policy, icon = (LIVE_POLICY, _NO_ICON) if live else (_POLICY, "")
    style, *parts = (folder.joinpath(n).read_text("utf-8") for n in ("style.css", *names))
    script = f"(() => {{\n'use strict';\n{''.join(parts)}}})();\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{icon}'
        f"<title>{escape(title)} - Coterie</title>\n<style>\n{style}</style>\n"
        f"</head>\n<body>\n{body}\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def format_body(head: str, sections: Sections) -> str:
    """Format the head and the sections of a page, with a table of contents beside them."""
    links = (f'<li><a href="#{_identify(title)}">{escape(title)}</a></li>' for title, _ in sections)
    parts = (
        f'<section id="{_identify(title)}"><h2>{escape(title)}</h2>\n{text}\n</section>'
        for title, text in sections
    )
    contents = f'<nav class="contents" aria-label="Contents"><ol>{"".join(links)}</ol></nav>'
    return (
        f'<div class="page">\n{contents}\n<main>\n<header>{head}\n{NO_SCRIPT}</header>\n'
        f"{''.join(parts)}\n</main>\n</div>"
    )


def _identify(title: str) -> str:
    letters = (letter if letter.isalnum() else "-" for letter in title.lower())
    return escape("".join(letters))


def format_note(text: str) -> str:
    """Format a remark in small print."""
    return f'<p class="note">{escape(text)}</p>'


def format_command(command: str) -> str:
    """Format a command to copy; its lines end between words, not behind the `-` of an option."""
    words = (f"<span>{escape(word)}</span>" for word in command.split(" "))
    return f'<pre class="command"><code>{" ".join(words)}</code></pre>'


def format_figures(charts: Iterable[Chart], kind: str = "charts") -> str:
    """Format several charts side by side, where there is room; `small` ones need less of it."""
    return f'<div class="{kind}">{"".join(map(format_figure, charts))}</div>'


def format_figure(chart: Chart) -> str:
    """Format a chart with its title; `draw.js` draws it."""
    text = json.dumps(chart.spec, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # nothing in it can end the script element
    remark = format_note(chart.note) if chart.note else ""
    return (
        f"<figure><figcaption><h3>{escape(chart.title)}</h3>{remark}</figcaption>"
        f'<div class="chart"></div><script type="application/json">{text}</script></figure>\n'
    )


def format_details(summary: str, text: str) -> str:
    """Format a text that is folded until it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>\n{text}</details>"


def format_tiles(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Format numbers in boxes, each with its name above and a remark below."""
    boxes = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        f"{f'<small>{escape(more)}</small>' if more else ''}</dd></div>"
        for name, value, more in tiles
    ]
    across = len(boxes) if len(boxes) <= _ACROSS else -(-len(boxes) // 2)
    return f'<dl class="tiles" style="--across:{min(across, _ACROSS)}">{"".join(boxes)}</dl>'
