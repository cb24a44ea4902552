"""Points in the plane: representations placed by t-SNE, a colour and a shape for every group."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from coterie.core.formatting import shorten
from coterie.report.chart import Chart, Spec
from coterie.report.plane import place_in_plane
from coterie.report.read import PartitionSummary

_NEIGHBOURS = 30  # t-SNE's perplexity, if there are enough points
_SIGNS = 64  # distinguishable pairs of colour and shape
_FILE = "embedding.npz"
_SHOWN = 1000  # points; more take long and hide each other
_FEWEST = 8
_LAYERS = {"features": "h, before the projector", "projection": "z, behind the projector"}


@dataclass(frozen=True)
class Scatter:
    """The points of one model, and all that were embedded together: they share their axes."""

    name: str
    points: np.ndarray
    classes: np.ndarray
    together: np.ndarray


def embed_in_plane(vectors: np.ndarray) -> np.ndarray:
    """Embed many vectors in the plane by t-SNE with cosine distances, from the same start."""
    from sklearn.manifold import TSNE  # takes long to import, and few pages have points

    perplexity = min(_NEIGHBOURS, max(2, len(vectors) // 4))
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=0, metric="cosine")
    with threadpool_limits(1):  # a few threads that wait for each other are slower than one
        points: np.ndarray = tsne.fit_transform(vectors)
    return points


def chart_points(shown: Sequence[Scatter], title: str, tied: bool = False) -> Chart:
    """Chart the points of several models by class; `tied` if their samples are the same."""
    labels = sorted({int(label) for panel in shown for label in np.unique(panel.classes)})
    panels = [
        _make_panel(panel.name, panel.points, panel.together)
        | {"of": panel.classes.astype(int).tolist()}
        for panel in shown
    ]
    groups = {"meaning": "class", "names": _name_groups(labels, "class", {})}
    spec: Spec = {"kind": "points", "side": 340, "panels": panels, "groups": groups, "tied": tied}
    return Chart(title, spec)


def _make_panel(name: str, points: np.ndarray, together: np.ndarray) -> Spec:
    x, y = np.round(points.T.astype(float), 2).tolist()
    (left, low), (right, high) = together.min(axis=0), together.max(axis=0)
    ends = [round(float(end), 2) for end in (left, right, low, high)]
    return {"name": name, "x": x, "y": y, "ends": ends}


def _name_groups(
    labels: Sequence[int], meaning: str, names: Mapping[int, str]
) -> list[tuple[int, str]]:
    """Name groups; a name that is a number gets the word for what it is."""
    named = []
    for label in labels:
        name = names.get(label, str(label))
        if name.lstrip("-").isdigit():
            name = f"{meaning} {name}" if label >= 0 else f"no {meaning}"
        named.append((label, shorten(name, 28)))
    return named


def chart_embedding(folder: Path, split: PartitionSummary) -> tuple[Chart | None, str]:
    """Chart `embedding.npz` and say a sentence about it; both are empty where there is none."""
    if not (folder / _FILE).is_file():
        return None, ""
    try:
        with (folder / _FILE).open("rb") as file, np.load(file) as held:
            arrays = {name: held[name][:_SHOWN] for name in held.files}
            count = len(held["class"])
        layers = {key: arrays[key] for key in _LAYERS if key in arrays}
        whose = {key: arrays[key] for key in ("class", "client")}
        usable = {key: vectors for key, vectors in layers.items() if _has_shape(vectors)}
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None, f"{_FILE} cannot be read and is not drawn."
    if len(whose["class"]) < _FEWEST or not usable:
        return None, f"{_FILE} has too few samples, or too much the same, for a picture."
    if len(usable) > 1 and np.array_equal(usable["features"], usable["projection"]):
        del usable["projection"]  # there is no projector
    panels = []
    for key, vectors in usable.items():
        points = place_in_plane(vectors)
        panels.append(_make_panel(_LAYERS[key], points, points))
    if len(panels) == 1 and "projection" not in layers:
        panels[0]["name"] = "h"
    shown = f"{len(whose['class']):,} of {count:,}" if len(whose["class"]) < count else f"{count:,}"
    text = (
        f"What the final model makes of {shown} training samples ({_FILE}), placed in the plane "
        "by t-SNE: samples that the model finds alike are close. Distances between far groups mean "
        "little. Point at a sample to find it in every panel."
    )
    return Chart("Representations", _tie(panels, whose, arrays.get("index"), split)), text


def _has_shape(vectors: np.ndarray) -> bool:
    """Whether vectors differ, in two directions at least."""
    if vectors.dtype.kind not in "fiu":
        raise ValueError("not numbers")
    if vectors.ndim != 2 or vectors.shape[1] < 2:
        return False
    return bool(np.isfinite(vectors).all()) and np.ptp(vectors, axis=0).max(initial=0.0) > 0.0


def _tie(
    panels: list[Spec],
    whose: Mapping[str, np.ndarray],
    index: np.ndarray | None,
    split: PartitionSummary,
) -> Spec:
    """Tie panels of the same samples together, coloured by class or by client."""
    names = {
        "class": dict(enumerate(split.classes)),
        "client": {client.id: client.name for client in split.clients},
    }
    views, samples = list[Spec](), list[tuple[str, list[str]]]()
    for key, numbers in whose.items():
        of = numbers.astype(int).tolist()
        labels = sorted(set(of))
        named = dict(_name_groups(labels, key, names[key]))
        samples.append((key, [names[key].get(n, str(n)) if n >= 0 else "none" for n in of]))
        if 1 < len(labels) <= _SIGNS:
            groups = {"meaning": key, "of": of, "names": list(named.items())}
            views.append({"name": f"by {key}", "groups": groups})
    if index is not None:
        samples.append(("row of the training set", [str(n) for n in index.tolist()]))
    if not views:
        every = [0] * len(whose["class"])
        views = [{"groups": {"meaning": "", "of": every, "names": [(0, "samples")]}}]
    spec: Spec = {"kind": "points", "choose": "colours", "panels": panels, "samples": samples}
    return spec | {"tied": True, "views": views}
