"""Draws curves over training rounds as SVG: a picture for a page or a paper."""

import math
from collections.abc import Sequence
from html import escape

Curve = Sequence[tuple[int, float]]  # (training round, counted from 1; value)
_Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 860, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 250, 44, 52
_COLOURS = ("#0072b2", "#d55e00", "#008a66", "#b0578d", "#a67c00", "#3ba0d8", "#7d4e2d", "#1c2126")
_DASHES = ("", "7 4", "2 3", "8 3 2 3")
_STEPS = [digit * 10.0**power for power in range(-4, 4) for digit in (1, 2, 5)]  # of an axis
_INK, _SOFT, _GRID = "#1c2126", "#56616b", "#e6e9ec"
_CENTRED = 'text-anchor="middle"'


def draw(lines: Sequence[tuple[str, Curve]], title: str, metric: str) -> str:
    """Draw named curves over training rounds, with a legend on the right."""
    rounds = [round for _, curve in lines for round, _ in curve]
    values = [value for _, curve in lines for _, value in curve]
    low, high, step = _choose_axis(min(values), max(values))
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
        _draw_text(_LEFT, 26, title, more='font-size="15"'),
    ]
    for tick in (round(low + i * step, 6) for i in range(round((high - low) / step) + 1)):
        parts.append(_draw_line([(_LEFT, y(tick)), (_LEFT + across, y(tick))], _GRID, 1))
        parts.append(_draw_text(_LEFT - 8, y(tick) + 4, f"{tick:g}", _SOFT, 'text-anchor="end"'))
    height = _HEIGHT - _BOTTOM + 20
    ticks = _list_rounds(first, last)
    parts += [_draw_text(x(tick), height, str(tick), _SOFT, _CENTRED) for tick in ticks]
    parts.append(_draw_text(_LEFT + across / 2, _HEIGHT - 10, "training round", more=_CENTRED))
    middle = _TOP + up / 2
    turned = f'{_CENTRED} transform="rotate(-90 16 {middle:.1f})"'
    parts.append(_draw_text(16, middle, metric, more=turned))
    for position, (name, curve) in enumerate(lines):
        colour, dash = _COLOURS[position % 8], _DASHES[position // 4 % 4]
        parts.append(_draw_line([(x(r), y(v)) for r, v in curve], colour, 2, dash))
        height, start = _TOP + 10 + 21 * position, _LEFT + across + 16
        parts.append(_draw_line([(start, height), (start + 30, height)], colour, 2, dash))
        parts.append(_draw_text(start + 38, height + 4, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _choose_axis(low: float, high: float) -> tuple[float, float, float]:
    """Choose ends and step of an axis in round numbers around the values."""
    span = max(high - low, 1e-3)
    step = next(s for s in _STEPS if span / s <= 7)
    return math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step, step


def _list_rounds(first: int, last: int) -> list[int]:
    """List the first and last round, and about eight between that do not crowd them."""
    step = next(int(step) for step in _STEPS if step >= 1 and (last - first) / step <= 8)
    between = (tick for tick in range(0, last, step) if first < tick and last - tick > step / 2)
    return sorted({first, *between, last})


def _draw_text(x: float, y: float, text: str, fill: str = _INK, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" {more}>{escape(text)}</text>'


def _draw_line(points: _Points, colour: str, width: int, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    style = f'fill="none" stroke="{colour}" stroke-width="{width}"{dashed}'
    return f'<polyline points="{path}" {style}/>'
