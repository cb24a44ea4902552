"""`dirichlet`: label skew, every class divided by a Dirichlet draw, with MOON's balance rule."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from coterie.core.errors import ConfigError
from coterie.data.partitions import require_enough

_ATTEMPTS, _FEWEST = 200, 10
_CELLS = 10_000_000  # numbers drawn in all the attempts at one beta: less than a second
_REDRAWS = 100
_PROBED = 4  # a beta that is only looked at gets one attempt in four
_STEP = 1.25
_ONE_HOT, _EVEN = 1e-6, 1e3  # below, a class goes to one client; above, shares are even
_BETA_MAX = 1e6


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """The partition of MOON (Li, He, Song 2021) and FedProc, as their public code deals it.

    For every class in order: p ~ Dir(beta 1_n) over the n clients; p_j = 0 where client j has its
    fair share N/n already; p = p / sum(p); the shuffled class is cut at floor(cumsum(p) |class|).
    The whole is drawn again until every client has `min_samples`, then each share is shuffled.

    A cumulative sum that ends just below 1 can leave a full client one stray sample of a class;
    this is kept, because the authors' partitions have it. Shares are not of equal size.
    """

    clients: Annotated[int, Ge(1)] = 10
    beta: Annotated[float, Gt(0), Le(_BETA_MAX)] = 0.5
    min_samples: Annotated[int, Ge(1)] = 10

    def deal(self, labels: np.ndarray, classes: int, seed: int) -> dict[int, np.ndarray]:
        """The training indices of every client; attempt a is drawn at the address of round a."""
        require_enough(len(labels), self.clients, self.min_samples)
        totals = np.bincount(labels, minlength=classes)
        best, limit = 0, self._limit(classes)
        for smallest, counts, generator in _attempts(self, totals, seed, self.beta, limit):
            if smallest >= self.min_samples:
                return _shares(labels, counts, generator)
            best = max(best, smallest)
        raise ConfigError(self._advice(totals, seed, best))

    def _limit(self, classes: int) -> int:
        """How often to draw: 200 times, less often where one draw takes long."""
        return min(_ATTEMPTS, max(_FEWEST, _CELLS // (classes * self.clients)))

    def _advice(self, totals: np.ndarray, seed: int, best: int) -> str:
        """One line: what was tried, and values that are known to work with this seed."""
        limit = self._limit(len(totals))
        beta = _smallest_beta(self, totals, seed, limit // _PROBED)
        remedies = [f"partition.beta={beta:g} or more"] if beta else []
        remedies += [f"partition.min_samples={best}"] if best else []
        remedies += ["fewer partition.clients"]
        unhelpful = "" if beta else "; no larger beta was found to help"
        return (
            f"partition.beta={self.beta} leaves one of partition.clients={self.clients} with "
            f"fewer than partition.min_samples={self.min_samples} of {totals.sum()} samples in "
            f"each of {limit} draws (the best draw left {best}){unhelpful}; "
            f"use {', or '.join(remedies)}"
        )


def _attempts(
    rule: Dirichlet, totals: np.ndarray, seed: int, beta: float, limit: int
) -> Iterator[tuple[int, np.ndarray, np.random.Generator]]:
    """Of every attempt the smallest share, the counts by class and client, and the generator."""
    from coterie.core import seeds

    for attempt in range(limit):
        generator = seeds.generator(seed, "partition", round=attempt)
        counts = _counts(generator, totals, rule.clients, beta)
        if counts is not None:
            yield int(counts.sum(axis=0).min()), counts, generator


def _shares(
    labels: np.ndarray, counts: np.ndarray, generator: np.random.Generator
) -> dict[int, np.ndarray]:
    """Shuffle every class, deal it out by the counts, and shuffle every client's share."""
    classes, clients = counts.shape
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts.sum(axis=1))[:-1])
    members = [generator.permutation(indices) for indices in by_class]
    owners = np.repeat(np.tile(np.arange(clients), classes), counts.reshape(-1))
    grouped = np.concatenate(members)[np.argsort(owners, kind="stable")]
    shares = np.split(grouped, np.cumsum(counts.sum(axis=0))[:-1])
    return {client: generator.permutation(share) for client, share in enumerate(shares)}


def _counts(
    generator: np.random.Generator, totals: np.ndarray, clients: int, beta: float
) -> np.ndarray | None:
    """How many samples of every class every client gets, or None if a class found no taker.

    Only these decide whether an attempt is good, so the shuffles are drawn after them.
    """
    counts = np.zeros((len(totals), clients), np.int64)
    sizes = np.zeros(clients, np.int64)
    concentration = np.full(clients, beta)
    fair = totals.sum() / clients
    for k in np.flatnonzero(totals):
        wanting = sizes < fair
        for _ in range(_REDRAWS):
            share = generator.dirichlet(concentration) * wanting
            weight = share.sum()
            if weight > 0:
                break
        else:
            return None
        cuts = np.floor(np.cumsum(share / weight) * totals[k]).astype(np.int64)
        cuts[-1] = totals[k]
        counts[k] = np.diff(cuts, prepend=0)
        sizes += counts[k]
    return counts


def _smallest_beta(rule: Dirichlet, totals: np.ndarray, seed: int, limit: int) -> float | None:
    """A beta of a growing grid that works where the one before it does not, by bisection."""
    start = max(rule.beta, _ONE_HOT)
    steps = max(0, math.ceil(math.log(_EVEN / start, _STEP)))
    grid = [float(f"{start * _STEP**step:.3g}") for step in range(1, steps + 1)]
    low, high = 0, len(grid)
    while low < high:
        middle = (low + high) // 2
        attempts = _attempts(rule, totals, seed, grid[middle], limit)
        works = any(smallest >= rule.min_samples for smallest, _, _ in attempts)
        low, high = (low, middle) if works else (middle + 1, high)
    return grid[low] if low < len(grid) else None
