"""Counts the clusters of representations that are distinguishable.

MFCL's Figure 6 draws the representations of global models for three norms of its sensor, beside
one client's images, and counts distinguishable clusters by eye. Here, with P the points of a panel
in t-SNE's plane:

    a class is distinguishable if the mean over its points of the share of their K nearest points
    (K = 10, fewer where there are fewer) that have the same class is more than 1/2

    clusters by silhouette: the number k = 2, ..., 15 for which k-means on P has the largest mean
    silhouette
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

NEIGHBOURS, MOST = 10, 15


@dataclass(frozen=True)
class Clusters:
    """What is distinguishable in a panel."""

    samples: int
    shares: Mapping[int, float]  # by class: nearest points of the same class
    silhouette: int  # clusters

    @property
    def share(self) -> float:
        """The mean over classes of the share of nearest points that have the same one."""
        return fmean(self.shares.values())

    @property
    def distinguishable(self) -> list[int]:
        """The classes that are distinguishable."""
        return [label for label, share in self.shares.items() if share > 0.5]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `features.json`."""
        return {
            "samples": self.samples,
            "distinguishable classes": len(self.distinguishable),
            "which": self.distinguishable,
            "same class among the nearest": {str(k): round(v, 4) for k, v in self.shares.items()},
            "clusters by silhouette": self.silhouette,
        }


def count_clusters(points: np.ndarray, y: np.ndarray) -> Clusters:
    """Apply both rules to the points of a panel."""
    return Clusters(len(y), share_neighbours(points, y), count_by_silhouette(points))


def share_neighbours(points: np.ndarray, y: np.ndarray, k: int = NEIGHBOURS) -> dict[int, float]:
    """Compute for every class the mean share of its points' k nearest points that have it too."""
    near = min(k, len(y) - 1)
    if near < 1:
        return {int(label): 0.0 for label in np.unique(y)}
    nearest = NearestNeighbors(n_neighbors=near).fit(points).kneighbors(return_distance=False)
    same = (y[nearest] == y[:, None]).mean(axis=1)
    return {int(label): float(same[y == label].mean()) for label in np.unique(y)}


def count_by_silhouette(points: np.ndarray, most: int = MOST) -> int:
    """Count the clusters of k-means with the largest silhouette; the fewest of equal ones."""
    best = (1, -2.0)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different points than clusters
        for k in range(2, min(most, len(points) - 1) + 1):
            labels = KMeans(k, n_init=10, random_state=0).fit_predict(points)
            count = len(np.unique(labels))
            value = silhouette_score(points, labels) if 1 < count < len(points) else -1.0
            if value > best[1] + 1e-12:
                best = (count, float(value))
    return best[0]


def describe_clusters(panels: Mapping[str, Clusters], rows: Sequence[str]) -> str:
    """Say what is distinguishable, and whether that is more in the last row than in the others."""
    counts = [
        f"{name} {len(c.distinguishable)} of {len(c.shares)} ({c.silhouette} by silhouette)"
        for name, c in panels.items()
    ]
    text = f"distinguishable classes: {'; '.join(counts)}."
    for row in rows[:-1]:
        more = len(panels[rows[-1]].distinguishable) > len(panels[row].distinguishable)
        verdict = "holds" if more else "does not hold"
        text += f" {rows[-1]} has more than {row}: {verdict} (one seed)."
    return text


def describe_neighbours(
    panels: Mapping[str, Clusters], pairs: Iterable[tuple[str, str]] = ()
) -> str:
    """Say how many neighbours of a point share its class, and in which of two panels more do."""
    shares = "; ".join(f"{name} {clusters.share:.3f}" for name, clusters in panels.items())
    text = f"same class among the {NEIGHBOURS} nearest points: {shares}."
    for more, less in pairs:
        verdict = "holds" if panels[more].share > panels[less].share else "does not hold"
        text += f" {more} has more than {less}: {verdict} (one seed)."
    return text
