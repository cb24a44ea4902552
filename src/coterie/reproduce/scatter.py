"""Pictures of embedded features: a panel for every model, a colour for every class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from coterie.report.chart import Chart, layout, titled
from coterie.report.page import figures, note

_PALETTE = ("@blue", "@orange", "@green", "@purple", "@gold", "@sky", "@brown", "@ink")
_SYMBOLS = ("circle", "diamond", "square", "x", "cross", "triangle-up", "star", "hexagon")


@dataclass(frozen=True)
class Scatter:
    """The points of one model, and all that were embedded together: they share their axes."""

    name: str
    places: np.ndarray
    classes: np.ndarray
    together: np.ndarray


def body(shown: Sequence[Scatter], title: str, words: str, about: str) -> Iterator[str]:
    """The page: the numbers in words, how to read it, then the panels."""
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="soft">{escape(words)}</p>'
    yield note(about)
    yield figures([panel(one) for one in shown], "charts small")


def panel(shown: Scatter) -> Chart:
    """The points of one model."""
    data: list[dict[str, Any]] = []
    for label in np.unique(shown.classes):
        points = shown.places[shown.classes == label]
        colour = _PALETTE[int(label) % len(_PALETTE)]
        symbol = _SYMBOLS[int(label) // len(_PALETTE) % len(_SYMBOLS)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"class {label}",
                "x": np.round(points[:, 0].astype(float), 3).tolist(),
                "y": np.round(points[:, 1].astype(float), 3).tolist(),
                "marker": {"color": colour, "symbol": symbol, "size": 5},
            }
        )
    look = layout(titled(""), titled(""))
    look["hovermode"] = "closest"
    for place, axis in enumerate(("xaxis", "yaxis")):
        low, high = float(shown.together[:, place].min()), float(shown.together[:, place].max())
        margin = 0.05 * (high - low)
        edges = {"range": [low - margin, high + margin]}
        look[axis] |= {"showticklabels": False, "zeroline": False, **edges}
    return Chart(shown.name, data, look)
