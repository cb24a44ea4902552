"""The picture of `growth.py`: three panels over the number of clients, as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
Line = tuple[str, list[tuple[int, float]]]

_WIDTH, _HEIGHT, _LEFT, _TOP, _FOOT, _GAP = 300, 250, 60, 70, 118, 30
_COLOURS = {"all take part": "#0072b2", "100 take part": "#d55e00"}
_INK, _SOFT, _GRID = "#1c2126", "#56616b", "#e6e9ec"
_MEGABYTE = 1e6


def draw(runs: Runs) -> str:
    """All panels with one legend below."""
    panels = (
        (
            "seconds a round",
            [(name, "", lambda run: run["seconds a round"]) for name in runs]
            + [(name, "2 3", lambda run: run["processor seconds a round"]) for name in runs],
        ),
        (
            "memory of processes, MB",
            [(name, "", _memory("main process, bytes")) for name in runs]
            + [(name, "5 4", _memory("largest worker, bytes")) for name in runs],
        ),
        (
            "run directory, MB",
            [(name, "", lambda run: run["run directory"]["bytes"] / _MEGABYTE) for name in runs],
        ),
    )
    width = _GAP + len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="13">',
        "<title>Cost by number of clients</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_GAP, 28, "Cost by number of clients", size=15),
    ]
    for place, (title, lines) in enumerate(panels):
        left = _GAP + place * (_WIDTH + _GAP)
        curves = [
            (name, dash, [(run["clients"], value(run)) for run in runs[name]])
            for name, dash, value in lines
        ]
        parts += _panel(left, title, curves)
    parts += _legend(_TOP + _HEIGHT + 68, list(runs))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _memory(process: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda run: run[process]["RssAnon"]["peak"] / _MEGABYTE


def _panel(
    left: float, title: str, curves: Sequence[tuple[str, str, list[tuple[int, float]]]]
) -> list[str]:
    """One chart: clients from left to right by powers of ten, values from zero up."""
    counts = sorted({clients for _, _, curve in curves for clients, _ in curve})
    top, step = axis(max(value for _, _, curve in curves for _, value in curve))
    first, last = math.log10(counts[0]), math.log10(counts[-1])
    across = _WIDTH - _LEFT - 20

    def x(clients: int) -> float:
        return left + _LEFT + (math.log10(clients) - first) / max(last - first, 1e-9) * across

    def y(value: float) -> float:
        return _TOP + _HEIGHT - value / top * (_HEIGHT - 10)

    parts = [_text(left + _LEFT, _TOP - 10, title)]
    for index in range(round(top / step) + 1):
        tick = index * step
        parts.append(_stroke([(left + _LEFT, y(tick)), (x(counts[-1]), y(tick))], _GRID, 1))
        parts.append(_text(left + _LEFT - 8, y(tick) + 4, f"{tick:g}", _SOFT, anchor="end"))
    foot = _TOP + _HEIGHT + 20
    parts += [_text(x(n), foot, f"{n:,}", _SOFT, anchor="middle") for n in counts]
    parts.append(_text(left + _LEFT + across / 2, foot + 20, "clients", _SOFT, anchor="middle"))
    for name, dash, curve in curves:
        points = [(x(clients), y(value)) for clients, value in curve]
        parts.append(_stroke(points, _COLOURS[name], 2, dash))
        dots = (f'cx="{a:.1f}" cy="{b:.1f}" r="3.5"' for a, b in points)
        parts += [f'<circle {dot} fill="{_COLOURS[name]}"/>' for dot in dots]
    return parts


def axis(highest: float) -> tuple[float, float]:
    """The upper end and the step of an axis from zero in round numbers."""
    steps = (digit * 10.0**power for power in range(-4, 8) for digit in (1, 2, 5))
    step = next(step for step in steps if highest / step <= 6)
    return max(1, math.ceil(highest / step - 1e-9)) * step, step


def _legend(height: float, names: Sequence[str]) -> list[str]:
    """Colours in one row, what the strokes mean in the next."""
    strokes = [("by the clock; main process", ""), ("of the processor, all processes", "2 3")]
    strokes.append(("largest worker", "5 4"))
    rows = [
        [(name, _COLOURS[name], "") for name in names],
        [(name, _SOFT, dash) for name, dash in strokes],
    ]
    parts = []
    for row in rows:
        start = float(_GAP + _LEFT)
        for name, colour, dash in row:
            parts.append(_stroke([(start, height - 4), (start + 26, height - 4)], colour, 2, dash))
            parts.append(_text(start + 34, height, name))
            start += 70 + 6.8 * len(name)
        height += 22
    return parts


def _text(
    x: float, y: float, text: str, fill: str = _INK, size: int = 13, anchor: str = "start"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _stroke(points: Sequence[tuple[float, float]], colour: str, width: int, dash: str = "") -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    style = f'fill="none" stroke="{colour}" stroke-width="{width}"{dashed}'
    return f'<polyline points="{places}" {style}/>'
