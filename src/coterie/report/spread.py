"""Means and spreads over seeds, and differences of two rows by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the runs that have a quantity."""

    mean: float
    std: float | None  # None with one run
    runs: int


def make_spread(values: Sequence[float]) -> Spread:
    """Compute mean and spread of one value or more."""
    return Spread(statistics.fmean(values), deviation(values), len(values))


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None where there are fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def gap(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[float, float | None]:
    """The mean difference of two rows by seed, and its spread; None where that is not known.

    A seed draws the data's division too, which moves all rows alike: rows are compared on the
    seeds that both have, and the spread is the deviation of these differences. A single difference
    has none, however many seeds one of the rows has besides. Rows without a common seed are
    compared by their means, with the deviations of both.
    """
    if common := sorted(first.keys() & second.keys()):
        differences = [first[seed] - second[seed] for seed in common]
        return statistics.fmean(differences), deviation(differences)
    own, other = list(first.values()), list(second.values())
    difference = statistics.fmean(own) - statistics.fmean(other)
    spreads = [one for one in (deviation(own), deviation(other)) if one is not None]
    return difference, math.hypot(*spreads) if len(spreads) > 1 else None
