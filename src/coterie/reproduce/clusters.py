"""The clusters of global models' representations: what a server can tell apart.

MFCL's Figure 6 draws them for three norms of its sensor, beside one client's images as they are,
and counts distinguishable clusters by eye. Here, with P the points of a panel in t-SNE's plane:

    a class is distinguishable if the mean over its points of the share of their K nearest points
    (K = 10, fewer where there are fewer) that have the same class is more than 1/2

    clusters by silhouette: the number k = 2, ..., 15 for which k-means on P has the largest mean
    silhouette
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.torch import load_file
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from coterie.core import exact, seeds
from coterie.core.errors import RunFailed
from coterie.core.files import replace_durably
from coterie.experiment.prepare import prepare
from coterie.experiment.run import MODEL
from coterie.report.page import document
from coterie.report.scatter import Scatter, in_plane
from coterie.reproduce.features import (
    ARRAYS,
    NUMBERS,
    PAGE,
    finished,
    projected,
    save_arrays,
)
from coterie.reproduce.recipe import Features
from coterie.reproduce.run import Found
from coterie.reproduce.scatter import body

NEIGHBOURS, MOST = 10, 15
_TITLE = "Clusters of global models"
_ABOUT = (
    "t-SNE by cosine, every panel by itself: of z, behind the projector, for training images of "
    "all clients; of the images themselves where it says so. Colour and symbol are the class. A "
    f"class is distinguishable if more than half of the {NEIGHBOURS} nearest points of its points, "
    "on average, are of the same class."
)


@dataclass(frozen=True)
class Counted:
    """What is told apart in a panel."""

    samples: int
    shares: Mapping[int, float]  # by class: nearest points of the same class
    silhouette: int  # clusters

    @property
    def told_apart(self) -> list[int]:
        """The classes that are distinguishable."""
        return [label for label, share in self.shares.items() if share > 0.5]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "samples": self.samples,
            "distinguishable classes": len(self.told_apart),
            "which": self.told_apart,
            "same class among the nearest": {str(k): round(v, 4) for k, v in self.shares.items()},
            "clusters by silhouette": self.silhouette,
        }


def count(places: np.ndarray, y: np.ndarray) -> Counted:
    """Both rules on the points of a panel."""
    return Counted(len(y), shares(places, y), by_silhouette(places))


def shares(places: np.ndarray, y: np.ndarray, neighbours: int = NEIGHBOURS) -> dict[int, float]:
    """For every class the mean share of its points' nearest points that have it too."""
    near = min(neighbours, len(y) - 1)
    if near < 1:
        return {int(label): 0.0 for label in np.unique(y)}
    nearest = NearestNeighbors(n_neighbors=near).fit(places).kneighbors(return_distance=False)
    same = (y[nearest] == y[:, None]).mean(axis=1)
    return {int(label): float(same[y == label].mean()) for label in np.unique(y)}


def by_silhouette(places: np.ndarray, most: int = MOST) -> int:
    """The number of clusters of k-means with the largest silhouette; the smallest of equal ones."""
    best = (1, -2.0)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different points than clusters
        for k in range(2, min(most, len(places) - 1) + 1):
            found = KMeans(k, n_init=10, random_state=0).fit_predict(places)
            many = len(np.unique(found))
            value = silhouette_score(places, found) if 1 < many < len(places) else -1.0
            if value > best[1] + 1e-12:
                best = (many, float(value))
    return best[0]


def write(found: Found, wanted: Features, folder: Path) -> str:
    """Write page, arrays and numbers beside the outcome; what is told apart in a sentence."""
    shown: list[Scatter] = []
    clients: list[np.ndarray] = []
    samples = wanted.count(found.plan.scale)
    for row in wanted.rows:
        config, place = finished(found, row)
        with TemporaryDirectory() as scratch, exact.exact_arithmetic():
            experiment = prepare(config, Path(scratch))
            train = experiment.partition.train
            if wanted.raw and not shown:
                first = wanted.clients[0]
                some = seeds.generator(0, "raw").permutation(train[first])[:samples]
                images = np.asarray(experiment.dataset.x_train[some], np.float32)
                labels = np.asarray(experiment.dataset.y_train[some])
                flat = images.reshape(len(some), -1)
                shown.append(_scatter(f"images of client {first + 1}", flat, labels))
                clients.append(np.full(len(some), first))
            if not (place / MODEL).is_file():
                raise RunFailed(f"{row} has no global model to take features from")
            owners = np.concatenate([np.full(len(rows), who) for who, rows in train.items()])
            rows = np.concatenate(list(train.values()))
            drawn = seeds.generator(0, "clusters").permutation(len(rows))[:samples]
            weights = load_file(place / MODEL)
            z, y = projected(experiment, weights, rows[drawn], test=False)
        shown.append(_scatter(row, z, y))
        clients.append(owners[drawn])
    numbers = {one.name: count(one.places, one.classes) for one in shown}
    words = sentence(numbers, wanted.rows if found.plan.scale != "smoke" else ())
    page = document(_TITLE.lower(), "\n".join(body(shown, _TITLE, words, _ABOUT)))
    replace_durably(folder / PAGE, page.encode())
    told = {name: one.to_json() for name, one in numbers.items()}
    replace_durably(folder / NUMBERS, (json.dumps(told, indent=1) + "\n").encode())
    save_arrays(folder / ARRAYS, shown, {"clients": np.concatenate(clients)})
    return words


def _scatter(name: str, vectors: np.ndarray, y: np.ndarray) -> Scatter:
    places = in_plane(vectors)
    return Scatter(name, places, y, places)


def sentence(numbers: Mapping[str, Counted], rows: Sequence[str]) -> str:
    """What is told apart in every panel, and whether it is more in the last row than in others."""
    said = [
        f"{name} {len(one.told_apart)} of {len(one.shares)} ({one.silhouette} by silhouette)"
        for name, one in numbers.items()
    ]
    words = f"distinguishable classes: {'; '.join(said)}."
    for row in rows[:-1]:
        more = len(numbers[rows[-1]].told_apart) > len(numbers[row].told_apart)
        said_so = "holds" if more else "does not hold"
        words += f" {rows[-1]} has more than {row}: {said_so} (one seed)."
    return words
