"""Points in the plane: representations brought there by t-SNE, a colour for every class."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from coterie.report.chart import Chart, make_axis, make_layout

_NEIGHBOURS = 30  # t-SNE's perplexity, if there are enough points
_PALETTE = ("@blue", "@orange", "@green", "@purple", "@gold", "@sky", "@brown", "@ink")
_SYMBOLS = ("circle", "diamond", "square", "x", "cross", "triangle-up", "star", "hexagon")
SIGNS = len(_PALETTE) * len(_SYMBOLS)  # that can be told apart


@dataclass(frozen=True)
class Scatter:
    """The points of one model, and all that were embedded together: they share their axes."""

    name: str
    points: np.ndarray
    classes: np.ndarray
    together: np.ndarray


def embed_in_plane(vectors: np.ndarray) -> np.ndarray:
    """Embed vectors in the plane by t-SNE with cosine distances, always from the same start."""
    from sklearn.manifold import TSNE  # takes long to import, and few pages have points

    perplexity = min(_NEIGHBOURS, max(2, len(vectors) // 4))
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=0, metric="cosine")
    with threadpool_limits(1):  # a few threads that wait for each other are slower than one
        points: np.ndarray = tsne.fit_transform(vectors)
    return points


def chart_points(shown: Scatter, meaning: str = "class", axes: tuple[str, str] = ("", "")) -> Chart:
    """Chart the points of one model; `meaning` is what their colours stand for."""
    data: list[dict[str, Any]] = []
    for label in np.unique(shown.classes):
        points = shown.points[shown.classes == label]
        colour = _PALETTE[int(label) % len(_PALETTE)]
        symbol = _SYMBOLS[int(label) // len(_PALETTE) % len(_SYMBOLS)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{meaning} {label}",
                "x": np.round(points[:, 0].astype(float), 3).tolist(),
                "y": np.round(points[:, 1].astype(float), 3).tolist(),
                "marker": {"color": colour, "symbol": symbol, "size": 5},
            }
        )
    look = make_layout(make_axis(axes[0]), make_axis(axes[1]))
    look["hovermode"] = "closest"
    for dimension, axis in enumerate(("xaxis", "yaxis")):
        coordinates = shown.together[:, dimension]
        low, high = float(coordinates.min()), float(coordinates.max())
        margin = 0.05 * (high - low)
        edges = {"range": [low - margin, high + margin]}
        look[axis] |= {"showticklabels": False, "zeroline": False, **edges}
    return Chart(shown.name, data, look)
