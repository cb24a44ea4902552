"""A picture of `embedding.npz`: representations of training samples in the plane, by t-SNE."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.report.chart import Chart
from coterie.report.scatter import SIGNS, Scatter, in_plane, panel

_FILE = "embedding.npz"
_SHOWN = 1000  # points; more take long and hide each other
_FEWEST = 8


def embedding(folder: Path) -> tuple[list[Chart], str]:
    """The charts, and what is to be said about them; nothing where there is no such file."""
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
    said = (
        f"t-SNE of what the final model makes of {shown} training samples ({_FILE}). Distances "
        "between far points mean little."
    )
    return list(_charts(in_plane(features), arrays)), said


def _charts(places: np.ndarray, arrays: dict[str, np.ndarray]) -> Iterator[Chart]:
    """The same points by class and by client, as far as there are signs to tell them apart."""
    for word in ("class", "client"):
        labels = arrays[word]
        if len(np.unique(labels)) <= SIGNS:
            title = f"Representations by {word}"
            shown = panel(Scatter(title, places, labels, places), word, ("t-SNE 1", "t-SNE 2"))
            yield replace(shown, height=420)
