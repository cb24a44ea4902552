"""Points in the plane: representations brought there by t-SNE, a colour for every class."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from coterie.report.chart import Chart, layout, titled

_NEIGHBOURS = 30  # t-SNE's perplexity, if there are enough points
_PALETTE = ("@blue", "@orange", "@green", "@purple", "@gold", "@sky", "@brown", "@ink")
_SYMBOLS = ("circle", "diamond", "square", "x", "cross", "triangle-up", "star", "hexagon")
SIGNS = len(_PALETTE) * len(_SYMBOLS)  # that can be told apart


@dataclass(frozen=True)
class Scatter:
    """The points of one model, and all that were embedded together: they share their axes."""

    name: str
    places: np.ndarray
    classes: np.ndarray
    together: np.ndarray


def in_plane(vectors: np.ndarray) -> np.ndarray:
    """t-SNE by cosine, always from the same start."""
    from sklearn.manifold import TSNE  # takes long to import, and few pages have points

    perplexity = min(_NEIGHBOURS, max(2, len(vectors) // 4))
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=0, metric="cosine")
    with threadpool_limits(1):  # a few threads that wait for each other are slower than one
        places: np.ndarray = tsne.fit_transform(vectors)
    return places


def panel(shown: Scatter, word: str = "class", axes: tuple[str, str] = ("", "")) -> Chart:
    """The points of one model; `word` is what their colours tell."""
    data: list[dict[str, Any]] = []
    for label in np.unique(shown.classes):
        points = shown.places[shown.classes == label]
        colour = _PALETTE[int(label) % len(_PALETTE)]
        symbol = _SYMBOLS[int(label) // len(_PALETTE) % len(_SYMBOLS)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{word} {label}",
                "x": np.round(points[:, 0].astype(float), 3).tolist(),
                "y": np.round(points[:, 1].astype(float), 3).tolist(),
                "marker": {"color": colour, "symbol": symbol, "size": 5},
            }
        )
    look = layout(titled(axes[0]), titled(axes[1]))
    look["hovermode"] = "closest"
    for place, axis in enumerate(("xaxis", "yaxis")):
        low, high = float(shown.together[:, place].min()), float(shown.together[:, place].max())
        margin = 0.05 * (high - low)
        edges = {"range": [low - margin, high + margin]}
        look[axis] |= {"showticklabels": False, "zeroline": False, **edges}
    return Chart(shown.name, data, look)
