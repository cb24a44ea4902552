"""The curves of an outcome as SVG: a picture that stands in a page or a paper by itself."""

import math
import re
from collections.abc import Iterator, Sequence
from html import escape

from coterie.reproduce.entries import Outcome
from coterie.reproduce.figures import Curve
from coterie.reproduce.plan import Plan

Line = tuple[str, Curve]

_WIDTH, _HEIGHT = 860, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 250, 44, 52
_COLOURS = ("#0072b2", "#d55e00", "#008a66", "#b0578d", "#a67c00", "#3ba0d8", "#7d4e2d", "#1c2126")
_DASHES = ("", "7 4", "2 3", "8 3 2 3")
_INK, _SOFT, _GRID = "#1c2126", "#56616b", "#e6e9ec"


def pictures(plan: Plan, outcome: Outcome) -> Iterator[tuple[str, str]]:
    """A file name and its SVG for every column that has curves."""
    for column in plan.columns:
        lines = [(row.name, outcome.entry(row.name, column.name).curve) for row in plan.rows]
        lines = [line for line in lines if len(line[1]) > 1]
        if lines:
            name = re.sub(r"[^A-Za-z0-9.=]+", "-", column.name).strip("-").lower()
            title = f"{plan.recipe.name}, {plan.scale} scale: {column.name}"
            yield f"curves-{name}.svg", draw(lines, title, plan.metric(column))


def draw(lines: Sequence[Line], title: str, metric: str) -> str:
    """Lines over training rounds, with a legend on the right."""
    rounds = [round for _, curve in lines for round, _ in curve]
    values = [value for _, curve in lines for _, value in curve]
    low, high, step = _axis(min(values), max(values))
    first, last = min(rounds), max(rounds)
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(round: float) -> float:
        return _LEFT + (round - first) / max(1, last - first) * across

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 26, title, size=15),
    ]
    for tick in _ticks(low, high, step):
        parts.append(_stroke([(_LEFT, y(tick)), (_LEFT + across, y(tick))], _GRID, 1))
        parts.append(_text(_LEFT - 8, y(tick) + 4, f"{tick:g}", _SOFT, anchor="end"))
    height = _HEIGHT - _BOTTOM + 20
    parts += [_text(x(t), height, str(t), _SOFT, anchor="middle") for t in _rounds(first, last)]
    parts.append(_text(_LEFT + across / 2, _HEIGHT - 10, "training round", anchor="middle"))
    middle = _TOP + up / 2
    turned = f'transform="rotate(-90 16 {middle:.1f})"'
    parts.append(_text(16, middle, metric, anchor="middle", more=turned))
    for place, (name, curve) in enumerate(lines):
        colour, dash = _COLOURS[place % 8], _DASHES[place // 4 % 4]
        parts.append(_stroke([(x(r), y(v)) for r, v in curve], colour, 2, dash))
        height, start = _TOP + 10 + 21 * place, _LEFT + across + 16
        parts.append(_stroke([(start, height), (start + 30, height)], colour, 2, dash))
        parts.append(_text(start + 38, height + 4, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(low: float, high: float) -> tuple[float, float, float]:
    """Ends and step of an axis in round numbers around what is shown."""
    span = max(high - low, 1e-3)
    step = next(s for s in _steps() if span / s <= 7)
    return math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step, step


def _steps() -> Iterator[float]:
    for power in range(-4, 4):
        for digit in (1, 2, 5):
            yield digit * 10.0**power


def _ticks(low: float, high: float, step: float) -> list[float]:
    return [round(low + i * step, 6) for i in range(round((high - low) / step) + 1)]


def _rounds(first: int, last: int) -> list[int]:
    """The first and the last round, and about eight whole ones between that do not crowd them."""
    step = next(int(step) for step in _steps() if step >= 1 and (last - first) / step <= 8)
    between = (tick for tick in range(0, last, step) if first < tick and last - tick > step / 2)
    return sorted({first, *between, last})


def _text(
    x: float,
    y: float,
    text: str,
    fill: str = _INK,
    size: int = 13,
    anchor: str = "start",
    more: str = "",
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place} {more}>{escape(text)}</text>"


def _stroke(points: Sequence[tuple[float, float]], colour: str, width: int, dash: str = "") -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    style = f'fill="none" stroke="{colour}" stroke-width="{width}"{dashed}'
    return f'<polyline points="{places}" {style}/>'
