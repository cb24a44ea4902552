"""Charts as plain data: the browser draws them (`draw.js`), and follows its theme and width.

A colour is a name and means a variable of `style.css`. Text is plain text: `draw.js` never reads it
as HTML.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.core.formatting import shorten
from coterie.engine.record import RoundEvent

_T = TypeVar("_T")
Spec = dict[str, Any]  # a chart or a part of it, as JSON
History = Sequence[RoundEvent]
Points = Sequence[tuple[float, float]]
PALETTE = ("blue", "orange", "green", "purple", "gold", "sky", "brown", "ink")
DASHES = ("solid", "dash", "dot", "dashdot")
DRAWN = 500  # points of a line, or bars; a screen shows no more
_POINTS, _FEWEST = 15_000, 50  # points of all lines of a page with many; of a line at least
_STAGES = 7  # more beginnings of stages than this would only clutter a chart


@dataclass(frozen=True)
class Chart:
    """A chart with its title and a note (plain text, not yet escaped)."""

    title: str
    spec: Spec
    note: str = ""


def make_axis(text: str, **more: Any) -> Spec:
    """Make an axis with a title; `more` may hold its ends, `low` and `high`."""
    return {"label": shorten(text, 60)} | more


def make_round_axis() -> Spec:
    """Make an axis of rounds, counted from 1."""
    return make_axis("round", whole=True)


def make_share_axis(name: str = "accuracy") -> Spec:
    """Make an axis for shares, which end at 1."""
    return make_axis(name, most=1)


def make_series(
    points: Points,
    name: str,
    colour: str,
    dash: str = "solid",
    band: Points = (),
    most: int = DRAWN,
) -> list[Spec]:
    """Make one line, with a band from the lower to the upper of each pair; nothing for no points.

    Of more points than `most` some are left out, evenly; the first and the last stay.
    """
    if not points:
        return []
    points, band = thin(points, most), thin(band, most)
    line: Spec = {
        "name": name,
        "colour": colour,
        "dash": dash,
        "x": [_trim(x) for x, _ in points],
        "y": [_trim(y) for _, y in points],
    }
    if band:
        line |= {"low": [_trim(low) for low, _ in band], "high": [_trim(high) for _, high in band]}
    return [line]


def thin(items: Sequence[_T], most: int) -> Sequence[_T]:
    """Leave some of very many items out, evenly; the first and the last stay."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def allot_points(lines: int) -> int:
    """Allot points to each of so many lines, so that a page with all of them stays small."""
    return max(_FEWEST, min(DRAWN, _POINTS // max(1, lines)))


def describe_thinning(longest: int, most: int) -> str:
    """Say that rounds are left out of a chart; empty where none is."""
    return f" {most:,} rounds of a line are drawn, evenly spaced." if longest > most else ""


def _trim(value: float) -> float:
    """Keep the digits that a picture can show, so that a page stays small."""
    return float(f"{value:.6g}")


def make_looks(count: int) -> list[tuple[str, str]]:
    """Make so many pairs of colour and dash: two lines of one colour differ in the dash."""
    return [(PALETTE[i % len(PALETTE)], DASHES[i // 4 % len(DASHES)]) for i in range(count)]


def list_points(history: Iterable[RoundEvent], metric: str) -> list[tuple[float, float]]:
    """List the values of a metric, by rounds counted from 1."""
    return [(e.round + 1, e.metrics[metric]) for e in history if metric in e.metrics]


def list_stages(history: History) -> list[tuple[int, str]]:
    """List where each stage begins in the history; none if there is one alone, or too many."""
    begun = [
        (i, shorten(event.stage, 20))
        for i, event in enumerate(history)
        if not i or event.stage != history[i - 1].stage
    ]
    return begun if 1 < len(begun) <= _STAGES else []


def mark_stages(history: History) -> list[Spec]:
    """Mark where stages begin: the first with its first round, others between two rounds."""
    begun = list_stages(history)
    return [{"at": history[i].round + (0.5 if i else 1), "text": name} for i, name in begun]
