"""`balanced-dirichlet`: label skew by a Dirichlet draw, with clients of equal size."""

from dataclasses import dataclass

import numpy as np

from coterie.core import seeds
from coterie.data.datasets import Groups
from coterie.data.partitions import require_enough
from coterie.data.partitions._draws import DirichletRule, deal_counts
from coterie.data.skew import Labels, Shares

_NORMALISATIONS = 100
_NOTHING = 1e-200  # sums below it are those of entries that were rounded to 0


@dataclass(frozen=True, slots=True)
class BalancedDirichlet(DirichletRule):
    """The partition of Orchestra (Lubana et al. 2022): a Dirichlet draw made doubly balanced.

    Every row of a K x n matrix is p ~ Dir(beta 1_n). Rows are scaled to the classes' sizes and
    columns to the clients' (N/n, plus or minus one) in turn, 100 times, and rounded down. The
    remainder is dealt so that no sample is lost and every size is exact: one by one where the
    largest fractions were cut off, the rest class by class. No draw can fail.
    """

    labels = True

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client."""
        require_enough(len(labels), self.clients, self.min_samples)
        generator = seeds.generator(seed, "partition")
        drawn = generator.dirichlet(np.full(self.clients, self.beta), size=classes)
        totals = np.bincount(labels, minlength=classes)
        sizes = np.full(self.clients, len(labels) // self.clients)
        sizes[: len(labels) % self.clients] += 1
        return deal_counts(
            labels, _round_to_margins(_balance(drawn, totals, sizes), totals, sizes), generator
        )


def _balance(matrix: np.ndarray, totals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Scale to both margins by Sinkhorn's algorithm; no row or column ends above its own."""
    matrix = np.nan_to_num(matrix)
    for _ in range(_NORMALISATIONS):
        matrix = matrix * _divide(totals, matrix.sum(axis=1))[:, None]
        matrix = matrix * _divide(sizes, matrix.sum(axis=0))
    shrunk = np.minimum(1.0, _divide(totals, matrix.sum(axis=1)))
    return np.asarray(matrix * shrunk[:, None])


def _divide(wanted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    return np.where(actual > _NOTHING, wanted / np.maximum(actual, _NOTHING), 0.0)


def _round_to_margins(matrix: np.ndarray, totals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Round to whole counts by class and client that meet both margins exactly."""
    counts: np.ndarray = np.floor(matrix).astype(np.int64)
    left, wanting = totals - counts.sum(axis=1), sizes - counts.sum(axis=0)
    fractions = (matrix - counts).reshape(-1)
    cut_off = np.argsort(-fractions, kind="stable")[: np.count_nonzero(fractions)]
    for k, j in zip(*(axis.tolist() for axis in np.divmod(cut_off, len(sizes))), strict=True):
        if left[k] and wanting[j]:
            counts[k, j] += 1
            left[k] -= 1
            wanting[j] -= 1
    for k in np.flatnonzero(left):
        for j in np.flatnonzero(wanting):
            number = min(left[k], wanting[j])
            counts[k, j] += number
            left[k] -= number
            wanting[j] -= number
    return counts
