"""Points in the plane: representations embedded by t-SNE, a colour for every class."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from coterie.core.formatting import shorten
from coterie.report.chart import Chart, Plotly, escape_label, make_axis, make_layout
from coterie.report.read import PartitionSummary

_NEIGHBOURS = 30  # t-SNE's perplexity, if there are enough points
PALETTE = ("@blue", "@orange", "@green", "@purple", "@gold", "@sky", "@brown", "@ink")
_SYMBOLS = ("circle", "diamond", "square", "x", "cross", "triangle-up", "star", "hexagon")
_SIGNS = len(PALETTE) * len(_SYMBOLS)  # distinguishable ones
_FILE = "embedding.npz"
_SHOWN = 1000  # points; more take long and hide each other
_FEWEST = 8


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


def chart_points(
    shown: Scatter,
    meaning: str = "class",
    axes: tuple[str, str] = ("", ""),
    names: Mapping[int, str] | None = None,
) -> Chart:
    """Chart the points of one model; `meaning` is what their colours stand for."""
    data: list[Plotly] = []
    for label in np.unique(shown.classes):
        x, y = np.round(shown.points[shown.classes == label].T.astype(float), 3).tolist()
        colour = PALETTE[int(label) % len(PALETTE)]
        symbol = _SYMBOLS[int(label) // len(PALETTE) % len(_SYMBOLS)]
        name = (names or {}).get(int(label), str(label))
        if name.lstrip("-").isdigit():  # a name by itself needs no further word
            name = f"{meaning} {name}" if label >= 0 else f"no {meaning}"
        name = escape_label(shorten(name, 28))
        trace = {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y}
        data.append(trace | {"marker": {"color": colour, "symbol": symbol, "size": 5}})
    look = make_layout(make_axis(axes[0]), make_axis(axes[1]))
    look["hovermode"] = "closest"
    for dimension, axis in enumerate(("xaxis", "yaxis")):
        coordinates = shown.together[:, dimension]
        low, high = float(coordinates.min()), float(coordinates.max())
        edges = [low - 0.05 * (high - low), high + 0.05 * (high - low)]
        look[axis] |= {"showticklabels": False, "zeroline": False, "range": edges}
    return Chart(shown.name, data, look)


def chart_embedding(folder: Path, split: PartitionSummary) -> tuple[list[Chart], str]:
    """Chart `embedding.npz` and say a sentence about it; both are empty where there is none."""
    if not (folder / _FILE).is_file():
        return [], ""
    try:
        with (folder / _FILE).open("rb") as file, np.load(file) as held:
            arrays = {name: held[name][:_SHOWN] for name in ("features", "class", "client")}
            count = len(held["class"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return [], f"{_FILE} cannot be read and is not drawn."
    features = arrays["features"]
    alike = not np.isfinite(features).all() or np.ptp(features, axis=0).max(initial=0.0) == 0.0
    if len(features) < _FEWEST or features.shape[1] < 2 or alike:
        return [], f"{_FILE} has too few samples, or too much the same, for a picture."
    shown = f"{len(features):,} of {count:,}" if len(features) < count else f"{count:,}"
    text = (
        f"t-SNE of what the final model makes of {shown} training samples ({_FILE}). Distances "
        "between far points mean little."
    )
    points, charts = embed_in_plane(features), list[Chart]()
    names = {
        "class": dict(enumerate(split.classes)),
        "client": {client.id: client.name for client in split.clients},
    }
    for name in ("class", "client"):
        if len(np.unique(arrays[name])) <= _SIGNS:
            scatter = Scatter(f"Representations by {name}", points, arrays[name], points)
            drawn = chart_points(scatter, name, ("t-SNE 1", "t-SNE 2"), names[name])
            charts.append(replace(drawn, height=420))
    return charts, text
