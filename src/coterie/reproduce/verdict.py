"""Whether what came out is what the paper printed, or goes the same way."""

import math
import statistics
from collections.abc import Sequence

from coterie.reproduce.entries import NONE, Entry
from coterie.reproduce.recipe import Recipe

WITHIN, DIRECTION, NOT, FAILED = "within", "direction", "not reproduced", "failed"
ONE_SEED = " (one seed)"
_ROUNDING = 1e-9  # 0.71 - 0.70 is one point, whatever the last bits say
_CLOSE = {"accuracy": 0.01, "time": 0.05}  # how far from the paper is still within


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None where there are fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def spread(
    first: Sequence[float], second: Sequence[float], reference: Sequence[float] = ()
) -> float | None:
    """The spread of the difference of two runs; None where nothing has two seeds.

    One value alone takes the deviation of the reference, else that of the other.
    """
    known = [deviation(values) for values in (reference, first, second)]
    usual = next((one for one in known if one is not None), None)
    if usual is None:
        return None
    own = [usual if one is None else one for one in known[1:]]
    return math.hypot(*own)


def verdict(recipe: Recipe, scale: str, entry: Entry, reference: Entry | None) -> str:
    """What is to be said of an entry beside the paper's number."""
    itself = entry.row == recipe.reference
    if scale == "smoke":  # it shows that everything runs, and nothing about the paper
        return NONE
    if entry.paper is None or (itself and (scale != "paper" or recipe.measure == "time")):
        return NONE
    if entry.mean is None:
        return FAILED if entry.failures else NONE
    apart = entry.deviation  # a ratio of times is one to the reference already
    if recipe.measure == "accuracy":
        against = reference.values if reference else entry.values
        apart = spread(entry.values, against, against)
    mark = ONE_SEED if apart is None else ""
    tolerance = max(_CLOSE[recipe.measure], entry.paper_spread or 0.0) + _ROUNDING
    if scale == "paper" and abs(entry.mean - entry.paper) <= tolerance:
        return WITHIN + mark
    if not itself and _same_direction(entry, reference, apart or 0.0):
        return DIRECTION + mark
    if not itself and (reference is None or reference.mean is None or reference.paper is None):
        return NONE
    return NOT + mark


def _same_direction(entry: Entry, reference: Entry | None, apart: float) -> bool:
    """Whether ours differs from the reference as the paper's does, beyond the spread."""
    if reference is None or None in (entry.mean, entry.paper, reference.mean, reference.paper):
        return False
    assert entry.mean is not None and entry.paper is not None
    assert reference.mean is not None and reference.paper is not None
    ours, theirs = entry.mean - reference.mean, entry.paper - reference.paper
    if math.isclose(theirs, 0.0, abs_tol=1e-9):
        return abs(ours) <= apart
    return ours * theirs > 0 and abs(ours) > apart
