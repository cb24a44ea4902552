"""Means and deviations of columns over sites, as a federation computes them without showing a row.

Every site sends its count n_k and sum s_k, the mean goes back, every site sends its sum q_k of
squared differences from it:

    mean = sum_k s_k / sum_k n_k        deviation^2 = sum_k q_k / (sum_k n_k - 1)

`add_up` and `add_squares` run at a site, `find_mean` and `find_deviation` at the server. A
simulation calls all four in one process and adds up in the same order, so both have equal bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Numbers = tuple[float, ...]  # of a statistic: one for each input of a column


@dataclass(frozen=True)
class Sums:
    """What a site sends of a column, for each of its inputs: how many are there, and their sum."""

    count: tuple[int, ...]
    total: Numbers


def add_up(inputs: np.ndarray) -> Sums:
    """Count and add up the inputs of a column at a site, float64 (rows, width); NaN: missing."""
    count, total = (~np.isnan(inputs)).sum(axis=0), np.nansum(inputs, axis=0)
    return Sums(tuple(count.tolist()), tuple(total.tolist()))


def add_squares(inputs: np.ndarray, mean: np.ndarray) -> Numbers:
    """Add up the squared differences of a site's inputs from the mean."""
    return tuple(np.nansum((inputs - mean) ** 2, axis=0).tolist())


def find_mean(sums: Sequence[Sums]) -> np.ndarray:
    """Find the mean over sites, per input; NaN if no site has a value."""
    count = np.sum([part.count for part in sums], axis=0)
    total = np.sum([part.total for part in sums], axis=0)
    mean: np.ndarray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def find_deviation(
    mean: np.ndarray, sums: Sequence[Sums], squares: Sequence[Numbers]
) -> np.ndarray:
    """Find the deviation over sites, per input; 1 for a column without spread."""
    count = np.sum([part.count for part in sums], axis=0)
    deviation = np.sqrt(np.sum(squares, axis=0) / np.maximum(count - 1, 1))
    # a constant column leaves rounding errors only
    flat = deviation <= 1e-12 * np.maximum(np.abs(mean), 1e-300)
    spread: np.ndarray = np.where(flat, 1.0, deviation)
    return spread


def measure_site(
    inputs: np.ndarray, mean: np.ndarray, deviation: np.ndarray
) -> tuple[Numbers, Numbers]:
    """Find mean and deviation of a site by itself; those given, where it has no value of its own.

    Both stay NaN where they are given as NaN.
    """
    sums = [add_up(inputs)]
    own = find_mean(sums)
    spread = find_deviation(own, sums, [add_squares(inputs, own)])
    absent = np.isnan(own)
    return (
        tuple(np.where(absent, mean, own).tolist()),
        tuple(np.where(absent, deviation, spread).tolist()),
    )
