"""Draws curves over training rounds as SVG: one chart, or a panel for each of several rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.report.svg import (
    CENTRED,
    COLOURS,
    DASHES,
    GRID,
    SOFT,
    draw_area,
    draw_line,
    draw_text,
    make_svg,
    place_panels,
    split_lines,
)

Curve = Sequence[tuple[int, float]]  # (training round, counted from 1; value)
Line = tuple[str, Curve]
Band = Sequence[tuple[int, float, float]]  # (training round, lowest, highest value)
Level = tuple[str, float]  # a base line: its name and value
_NO_BANDS: Mapping[str, Band] = {}
_Look = tuple[str, str]  # colour, dash

_WIDTH, _HEIGHT = 872, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 250, 44, 52
_SMALL = 532, 330  # without the legend
_PANEL = 300, 230  # width and height with title and labels
_SAMPLE = 30  # pixels of a line in the legend
_STEPS = [digit * 10.0**power for power in range(-4, 4) for digit in (1, 2, 5)]  # of an axis


@dataclass(frozen=True)
class _Frame:
    """The rectangle between the axes, in pixels."""

    left: float
    top: float
    width: float
    height: float


def draw(lines: Sequence[Line], title: str, metric: str) -> str:
    """Draw named curves over training rounds, with a legend on the right."""
    frame = _Frame(_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM)
    looks = _choose_looks([name for name, _ in lines])
    parts = [draw_text(_LEFT, 26, title, more='font-size="15"')]
    parts += _draw_curves(frame, lines, looks, most=8)
    parts += _name_axes(frame, metric)
    for position, (name, look) in enumerate(looks.items()):
        start, height = _LEFT + frame.width + 16, _TOP + 10 + 21 * position
        parts += _draw_sample(start, height, name, look)
    return make_svg(_WIDTH, _HEIGHT, title, parts)


def draw_small(
    lines: Sequence[Line],
    bands: Mapping[str, Band],
    levels: Sequence[Level],
    title: str,
    metric: str,
) -> str:
    """Draw a few curves, with bands behind them and levels across, to be read on a phone too.

    The legend is above the chart, two names in a row.
    """
    looks = _choose_looks([name for name, _ in lines])
    looks |= {name: (SOFT, DASHES[1 + i % 3]) for i, (name, _) in enumerate(levels)}
    above = 8 + 22 * -(-len(looks) // 2)
    width, height = _SMALL
    frame = _Frame(_LEFT, _TOP + above, width - _LEFT - 20, height - _TOP - _BOTTOM)
    parts = [draw_text(20, 26, title, more='font-size="15"')]
    for position, (name, look) in enumerate(looks.items()):
        at = 20 + 250 * (position % 2), 50 + 22 * (position // 2)
        parts += _draw_sample(*at, name, look)
    parts += _draw_curves(frame, lines, looks, 6, bands, levels)
    parts += _name_axes(frame, metric)
    return make_svg(width, height + above, title, parts)


def draw_panels(panels: Sequence[tuple[str, Sequence[Line]]], title: str, metric: str) -> str:
    """Draw a panel for each row side by side; each has its own scale, lines have the same looks.

    Values of different rows need not be comparable, as losses of different methods are not.
    """
    names = list(dict.fromkeys(name for _, lines in panels for name, _ in lines))
    looks = _choose_looks(names)
    legend = [names[i : i + 4] for i in range(0, len(names), 4)] if len(names) > 1 else []
    top = 44 + 22 * len(legend)
    corners, width, height = place_panels(split_lines(len(panels)), *_PANEL, top)
    parts = [draw_text(20, 26, title, more='font-size="15"')]
    for line, some in enumerate(legend):
        for position, name in enumerate(some):
            parts += _draw_sample(20 + 225 * position, 48 + 22 * line, name, looks[name])
    for (left, above), (name, lines) in zip(corners, panels, strict=True):
        frame = _Frame(left + 76, above + 26, _PANEL[0] - 92, _PANEL[1] - 78)
        parts.append(draw_text(frame.left, above + 16, name, more='font-weight="600"'))
        parts += _draw_curves(frame, lines, looks, most=5)
        middle = frame.left + frame.width / 2
        labelled = frame.top + frame.height + 37
        parts.append(draw_text(middle, labelled, "training round", SOFT, CENTRED))
        parts.append(_draw_upright(left + 16, frame.top + frame.height / 2, metric))
    return make_svg(width, height, title, parts)


def _choose_looks(names: Sequence[str]) -> dict[str, _Look]:
    """Choose a colour and a dash for every name: two that share a colour differ in the dash."""
    return {n: (COLOURS[i % 8], DASHES[i // 4 % 4]) for i, n in enumerate(names)}


def _draw_curves(
    frame: _Frame,
    lines: Sequence[Line],
    looks: Mapping[str, _Look],
    most: int,
    bands: Mapping[str, Band] = _NO_BANDS,
    levels: Sequence[Level] = (),
) -> Iterator[str]:
    """Draw curves with their axes; rounds have about `most` labels."""
    rounds = [round for _, curve in lines for round, _ in curve]
    values = [value for _, curve in lines for _, value in curve]
    values += [end for band in bands.values() for _, *ends in band for end in ends]
    values += [value for _, value in levels]
    low, high, step = _choose_axis(min(values), max(values))
    first, last = min(rounds), max(rounds)
    right, bottom = frame.left + frame.width, frame.top + frame.height

    def x(round: float) -> float:
        return frame.left + (round - first) / max(1, last - first) * frame.width

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * frame.height

    for tick in (round(low + i * step, 6) for i in range(round((high - low) / step) + 1)):
        yield draw_line([(frame.left, y(tick)), (right, y(tick))], GRID, 1)
        yield draw_text(frame.left - 8, y(tick) + 4, f"{tick:g}", SOFT, 'text-anchor="end"')
    for tick in _list_rounds(first, last, most):
        yield draw_text(x(tick), bottom + 20, str(tick), SOFT, CENTRED)
    for name, band in bands.items():
        above = [(x(r), y(highest)) for r, _, highest in band]
        below = [(x(r), y(lowest)) for r, lowest, _ in reversed(band)]
        yield draw_area([*above, *below], looks[name][0])
    for name, value in levels:
        yield draw_line(
            [(frame.left, y(value)), (right, y(value))], looks[name][0], 1, looks[name][1]
        )
    for name, curve in lines:
        yield draw_line([(x(r), y(v)) for r, v in curve], looks[name][0], 2, looks[name][1])


def _draw_sample(left: float, height: float, name: str, look: _Look) -> Iterator[str]:
    """Draw an entry of the legend."""
    yield draw_line([(left, height), (left + _SAMPLE, height)], look[0], 2, look[1])
    yield draw_text(left + _SAMPLE + 8, height + 4, name)


def _name_axes(frame: _Frame, metric: str) -> Iterator[str]:
    """Draw the names of both axes."""
    below = frame.top + frame.height + 42
    yield draw_text(frame.left + frame.width / 2, below, "training round", more=CENTRED)
    yield _draw_upright(16, frame.top + frame.height / 2, metric)


def _draw_upright(left: float, middle: float, text: str) -> str:
    """Draw a text that reads upwards."""
    turned = f'{CENTRED} transform="rotate(-90 {left:.1f} {middle:.1f})"'
    return draw_text(left, middle, text, more=turned)


def _choose_axis(low: float, high: float) -> tuple[float, float, float]:
    """Choose ends and step of an axis in round numbers around the values."""
    span = max(high - low, 1e-3)
    step = next((s for s in _STEPS if span / s <= 7), 10.0 ** math.ceil(math.log10(span)))
    return math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step, step


def _list_rounds(first: int, last: int, most: int) -> list[int]:
    """List the first and last round, and some between that do not crowd them."""
    step = next(int(step) for step in _STEPS if step >= 1 and (last - first) / step <= most)
    between = (tick for tick in range(0, last, step) if first < tick and last - tick > step / 2)
    return sorted({first, *between, last})
