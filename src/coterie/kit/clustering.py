"""Clusters of equal size on the unit sphere: of one client's representations, and of all clients'.

Both assign by Sinkhorn's algorithm, which uses all centroids alike: with rows x_i and centroids c_k
of length one,

    q = Sinkhorn(softmax_k(lambda x_i . c_k)),     sum_k q_ik = 1,  sum_i q_ik = rows / centroids
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_LEAST = 1e-6  # a row or a sum of rows that is shorter has no direction
_LOOK, _SETTLED = 10, 1e-2  # how often rows are looked at, and by how much they may still move
_FAR = 200.0  # logarithms so far below 0 could leave float64 when they are scaled


@dataclass(frozen=True)
class EqualShares:
    """Assignments of rows to centroids that use all centroids alike, as Orchestra's code has them.

    From p = softmax(lambda x . c) over the centroids and u = 1, an iteration is

        v_k = (rows / centroids) / sum_i u_i p_ik,     u_i = 1 / sum_k v_k p_ik

    and q = u p v. They end early once sum_i |u_i / u_i' - 1| < 0.01 between an iteration's u and
    its new u', which is looked at in the first one and in every tenth after it.
    """

    sharpness: float  # lambda
    iterations: int  # at most

    @torch.no_grad()
    def __call__(self, rows: Tensor, centroids: Tensor) -> Tensor:
        """q: a distribution over the centroids for every row."""
        scores = (rows @ centroids.T).to(torch.float64)
        logs = F.log_softmax(self.sharpness * scores, dim=1)
        balance = _balance_logs if float(logs.min()) < -_FAR else _balance
        return balance(logs, self.iterations).to(rows.dtype)


def _balance(logs: Tensor, iterations: int) -> Tensor:
    """Scale e^logs to equal shares."""
    size, count = logs.shape
    matrix, by_row = logs.exp(), logs.new_ones(size)
    by_column = logs.new_ones(count)
    for iteration in range(iterations):
        by_column = (size / count) / (by_row @ matrix)
        before, by_row = by_row, 1.0 / (matrix @ by_column)
        if iteration % _LOOK == 0 and _settled(before / by_row):
            break
    return by_row[:, None] * matrix * by_column


def _balance_logs(logs: Tensor, iterations: int) -> Tensor:
    """The same in logarithms, at many times the cost, for scores that would leave float64."""
    size, count = logs.shape
    by_row, by_column = logs.new_zeros(size), logs.new_zeros(count)
    for iteration in range(iterations):
        by_column = math.log(size / count) - torch.logsumexp(logs + by_row[:, None], dim=0)
        before, by_row = by_row, -torch.logsumexp(logs + by_column, dim=1)
        if iteration % _LOOK == 0 and _settled((before - by_row).exp()):
            break
    return (by_row[:, None] + logs + by_column).exp()


def _settled(ratios: Tensor) -> bool:
    return float((ratios - 1.0).abs().sum()) < _SETTLED


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
