"""Clusters of equal size on the unit sphere: of one client's representations, and of all clients'.

Both assign by Sinkhorn's algorithm, which uses all centroids alike: with rows x_i and centroids c_k
of length one,

    q = Sinkhorn(e^{lambda x_i . c_k}),     sum_k q_ik = 1,  sum_i q_ik = rows / centroids
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.kit.losses import sinkhorn

_LEAST = 1e-6  # a row or a sum of rows that is shorter has no direction


@dataclass(frozen=True)
class EqualShares:
    """Assignments of rows to centroids that use all centroids alike."""

    sharpness: float  # lambda
    iterations: int

    def __call__(self, rows: Tensor, centroids: Tensor) -> Tensor:
        """q: a distribution over the centroids for every row."""
        return sinkhorn(rows @ centroids.T, 1.0 / self.sharpness, self.iterations)


@torch.no_grad()
def cluster(
    rows: Tensor, count: int, shares: EqualShares, iterations: int, generator: np.random.Generator
) -> Tensor:
    """Centroids of `count` clusters of about the same size, each of length one.

    From rows drawn as the first centroids: every row goes where its q is largest, every centroid to
    the mean of its rows. A centroid without rows becomes a row that is drawn.
    """
    first = generator.choice(len(rows), count, replace=False)
    centroids = rows[torch.from_numpy(first)]
    for _ in range(iterations):
        places = shares(rows, centroids).argmax(dim=1)
        sums = torch.zeros_like(centroids).index_add_(0, places, rows)
        strays = generator.integers(len(rows), size=count)  # whether needed or not
        lost = sums.norm(dim=1, keepdim=True) < _LEAST
        centroids = F.normalize(torch.where(lost, rows[torch.from_numpy(strays)], sums), dim=1)
    return centroids


def disagreement(
    rows: Tensor, centroids: Tensor, shares: EqualShares, temperature: float
) -> Tensor:
    """-mean_i cos(q_i, softmax(c . x_i / T)): how far soft assignments are from equal shares."""
    goals = shares(rows, centroids.detach())
    return -F.cosine_similarity(goals, F.softmax(rows @ centroids.T / temperature, dim=1)).mean()


@dataclass(frozen=True)
class Descent:
    """How centroids are fitted: SGD, and length one after every step."""

    steps: int
    lr: float
    momentum: float
    weight_decay: float

    def __call__(
        self, rows: Tensor, centroids: Tensor, shares: EqualShares, temperature: float
    ) -> Tensor:
        """The centroids after the steps, from those given."""
        moved = centroids.clone().requires_grad_(True)
        optimizer = torch.optim.SGD(
            [moved], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        for _ in range(self.steps):
            optimizer.zero_grad()
            disagreement(rows, moved, shares, temperature).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                moved.copy_(F.normalize(moved, dim=1))
        return moved.detach()


def directed(rows: Tensor) -> Tensor:
    """The rows that have a direction, at length one: equal images may be projected to zero."""
    return F.normalize(rows[rows.norm(dim=1) > _LEAST], dim=1)


def directions(count: int, entries: int, generator: np.random.Generator) -> Tensor:
    """Directions drawn evenly from the sphere."""
    drawn = generator.standard_normal((count, entries)).astype(np.float32)
    return F.normalize(torch.from_numpy(drawn), dim=1)
