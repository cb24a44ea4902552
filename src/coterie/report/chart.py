"""The parts of charts: series, axes, lines and labels, as plain Plotly dictionaries.

A colour is written `@name` and means the variable `--name` of `style.css`: `draw.js` looks it up
when it draws, so that the charts follow the light and the dark theme and the printer.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.formatting import shorten
from coterie.engine.record import RoundEvent

Plotly = dict[str, Any]  # a part of a chart
History = Sequence[RoundEvent]
Points = Sequence[tuple[float, float]]
AXIS: Plotly = {
    "automargin": True,
    "gridcolor": "@grid",
    "linecolor": "@line",
    "zerolinecolor": "@grid",
    "showline": True,
}
_MARKED = 60  # a series of more points than this is a line without markers
_STAGES = 6  # more beginnings of stages than this would only clutter a chart
_HIGH = 0.95  # the label of a target above this is below its line, clear of the legend


@dataclass(frozen=True)
class Chart:
    """A chart with its title and a note (plain text, not yet escaped)."""

    title: str
    data: list[Plotly]
    layout: Plotly
    note: str = ""
    height: int = 360


def escape_label(value: str) -> str:
    """Escape text from a file: Plotly interprets some HTML in its labels."""
    return html.escape(value, quote=False)


def make_layout(x: Plotly, y: Plotly) -> Plotly:
    """Make the layout that all charts share, with these axes."""
    for axis in (x, y):
        axis["title"]["standoff"] = 10  # else a title may lie on the ticks' labels
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    return {
        "autosize": True,
        "margin": {"l": 10, "r": 14, "t": 10, "b": 10},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "@ink"},
        "paper_bgcolor": "@card",
        "plot_bgcolor": "@card",
        "hoverlabel": {"bgcolor": "@card", "bordercolor": "@line", "font": {"color": "@ink"}},
        "hovermode": "x unified",
        "legend": legend,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@line", "activecolor": "@ink"},
        "shapes": [],
        "annotations": [],
        "xaxis": AXIS | x,
        "yaxis": AXIS | y,
    }


def make_axis(text: str) -> Plotly:
    """Make an axis with a title."""
    return {"title": {"text": escape_label(text)}}


def make_round_axis(first: int, last: int) -> Plotly:
    """Make an axis from one round to another, counted from 1."""
    pad = 0.5 if last - first < 20 else 0.02 * (last - first)
    axis = make_axis("round") | {"tickformat": "d", "range": [first - pad, last + pad]}
    return axis | ({"dtick": 1} if last - first <= 10 else {})


def make_share_axis(values: Sequence[float], name: str = "accuracy") -> Plotly:
    """Make an axis for shares from 0, up to the tenth above the highest."""
    top = min(10, int(10 * max(values) + 1.5)) / 10
    return make_axis(f"{shorten(name, 28)} (share)") | {"range": [0, top * 1.02]}


def make_series(points: Points, name: str, colour: str, dash: str = "solid") -> list[Plotly]:
    """Make one line, with markers where there are few points; nothing for no points."""
    single = len(points) == 1
    line = {
        "type": "scatter",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "name": escape_label(name),
        "mode": "markers" if single else "lines+markers" if len(points) <= _MARKED else "lines",
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour, "symbol": "circle", "size": 9 if single else 5},
    }
    return [line] if points else []


def list_points(history: History, metric: str) -> list[tuple[float, float]]:
    """List the values of a metric, by rounds counted from 1."""
    return [(e.round + 1, e.metrics[metric]) for e in history if metric in e.metrics]


def mark_target(look: Plotly, target: float, high: float = _HIGH) -> None:
    """Draw a line at a target; its label is on the left, where accuracies are still low."""
    line = {"xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
    label = {"xref": "paper", "x": 0, "y": target, "yanchor": "bottom" if target < high else "top"}
    _draw_rule(look, line, label | {"text": f"target {target:.4g}"})


def mark_stages(look: Plotly, history: History) -> None:
    """Draw a line where a stage begins, if there are several stages."""
    begun = [event for i, event in enumerate(history) if i and event.stage != history[i - 1].stage]
    for event in begun if len(begun) <= _STAGES else ():
        at = event.round + 0.5
        line = {"yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at}
        label = {"yref": "paper", "y": 1, "x": at, "yanchor": "top"}
        _draw_rule(look, line, label | {"text": escape_label(shorten(event.stage, 20))})


def _draw_rule(look: Plotly, line: Plotly, label: Plotly) -> None:
    stroke = {"color": "@line", "width": 1, "dash": "dot"}
    look["shapes"].append({"type": "line", "line": stroke, "layer": "below"} | line)
    style = {"font": {"size": 11, "color": "@soft"}, "showarrow": False, "xanchor": "left"}
    look["annotations"].append(style | label)
