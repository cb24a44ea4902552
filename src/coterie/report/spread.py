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


def gap(
    first: Mapping[int, float], second: Mapping[int, float], usual: Sequence[float] = ()
) -> tuple[float, float | None]:
    """The mean difference of two rows by seed, and its spread; None where that is not known.

    A seed draws the data's division too, which moves all rows alike: rows are compared on the
    seeds that both have. On two or more the spread is the deviation of the differences; on one it
    is that of two runs with the deviation of `usual`, the reference's values. Rows without a
    common seed have each its own deviation, or that of `usual` where it has one seed.
    """
    common = sorted(first.keys() & second.keys())
    differences = [first[seed] - second[seed] for seed in common]
    if len(common) > 1:
        return statistics.fmean(differences), statistics.stdev(differences)
    own, other = list(first.values()), list(second.values())
    known = [statistics.stdev(values) for values in (usual, own, other) if len(values) > 1]
    if common:
        return differences[0], math.hypot(known[0], known[0]) if known else None
    difference = statistics.fmean(own) - statistics.fmean(other)
    each = (statistics.stdev(v) if len(v) > 1 else known[0] for v in (own, other))
    return difference, math.hypot(*each) if known else None
