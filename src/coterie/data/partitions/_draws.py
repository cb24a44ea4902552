"""Dirichlet draws, repeated until every client has enough samples."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.fields import PositiveCount
from coterie.data.partitions import require_enough
from coterie.data.skew import Labels, Shares, Skewed

_ATTEMPTS, _FEWEST = 200, 10
_CELLS = 10_000_000  # numbers drawn in all attempts at one beta: less than a second
_PROBED = 4  # a beta that is only tried as a suggestion gets a quarter of the attempts
_STEP = 1.25
_ONE_HOT, _EVEN = 1e-6, 1e3  # below: a class goes to one client; above: shares are equal
BETA_MAX = 1e6

# Draws counts by class (or one row for all) and client for a beta; None if the draw failed.
Draw = Callable[[np.random.Generator, float], np.ndarray | None]


@dataclass(frozen=True, slots=True)
class DirichletRule(Skewed):
    """The keys of all rules with a Dirichlet draw; `beta` is the concentration of each entry."""

    clients: PositiveCount = 10
    beta: Annotated[float, Gt(0), Le(BETA_MAX)] = 0.5
    min_samples: PositiveCount = 10


def draw_enough(
    rule: DirichletRule, draw: Draw, samples: int, rows: int, seed: int
) -> tuple[np.ndarray, np.random.Generator]:
    """Draw until every client has `min_samples`; return the counts and the generator used.

    Attempt a uses the generator of round a. There are at most 200 attempts, fewer if `rows` times
    the clients is large; after the last, the error suggests values that work with this seed.
    """
    require_enough(samples, rule.clients, rule.min_samples)
    limit = min(_ATTEMPTS, max(_FEWEST, _CELLS // (rows * rule.clients)))
    best = 0
    for smallest, counts, generator in _attempts(draw, seed, rule.beta, limit):
        if smallest >= rule.min_samples:
            return counts, generator
        best = max(best, smallest)
    beta = _smallest_beta(rule, draw, seed, limit // _PROBED)
    remedies = [f"partition.beta={beta:g} or more"] if beta else []
    remedies += [f"partition.min_samples={best}"] if best else []
    remedies += ["fewer partition.clients"]
    unhelpful = "" if beta else "; no larger beta was found to help"
    raise ConfigError(
        f"partition.beta={rule.beta} leaves one of partition.clients={rule.clients} with "
        f"fewer than partition.min_samples={rule.min_samples} of {samples} samples in "
        f"each of {limit} draws (the best draw left {best}){unhelpful}; "
        f"use {', or '.join(remedies)}"
    )


def deal_counts(labels: Labels, counts: np.ndarray, generator: np.random.Generator) -> Shares:
    """Shuffle every class, deal it by the counts, and shuffle every client's share."""
    classes, clients = counts.shape
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts.sum(axis=1))[:-1])
    members = [generator.permutation(indices) for indices in by_class]
    owners = np.repeat(np.tile(np.arange(clients), classes), counts.reshape(-1))
    grouped = np.concatenate(members)[np.argsort(owners, kind="stable")]
    shares = np.split(grouped, np.cumsum(counts.sum(axis=0))[:-1])
    return {client: generator.permutation(share) for client, share in enumerate(shares)}


def _attempts(
    draw: Draw, seed: int, beta: float, limit: int
) -> Iterator[tuple[int, np.ndarray, np.random.Generator]]:
    """Yield the smallest share, the counts and the generator of each attempt."""
    for attempt in range(limit):
        generator = seeds.generator(seed, "partition", round=attempt)
        counts = draw(generator, beta)
        if counts is not None:
            yield int(counts.sum(axis=0).min()), counts, generator


def _smallest_beta(rule: DirichletRule, draw: Draw, seed: int, limit: int) -> float | None:
    """Search a grid of larger betas by bisection for the first that works."""
    start = max(rule.beta, _ONE_HOT)
    steps = max(0, math.ceil(math.log(_EVEN / start, _STEP)))
    grid = [float(f"{start * _STEP**step:.3g}") for step in range(1, steps + 1)]

    def works(beta: float) -> bool:
        attempts = _attempts(draw, seed, beta, limit)
        return any(smallest >= rule.min_samples for smallest, _, _ in attempts)

    first = bisect_left(grid, True, key=works)
    return grid[first] if first < len(grid) else None
