"""Charts `embedding.npz`: representations of training samples in the plane, by t-SNE."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.report.chart import Chart
from coterie.report.scatter import SIGNS, Scatter, chart_points, embed_in_plane

_FILE = "embedding.npz"
_SHOWN = 1000  # points; more take long and hide each other
_FEWEST = 8


def chart_embedding(folder: Path) -> tuple[list[Chart], str]:
    """Chart the file, and say a sentence about it; both are empty where it does not exist."""
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
    return list(_chart(embed_in_plane(features), arrays)), text


def _chart(points: np.ndarray, arrays: dict[str, np.ndarray]) -> Iterator[Chart]:
    """Chart the points by class and by client, as far as there are signs to tell them apart."""
    for name in ("class", "client"):
        labels = arrays[name]
        if len(np.unique(labels)) <= SIGNS:
            scatter = Scatter(f"Representations by {name}", points, labels, points)
            yield replace(chart_points(scatter, name, ("t-SNE 1", "t-SNE 2")), height=420)
