"""Whether what came out is what the paper printed, or goes the same way."""

import math
import statistics
from collections.abc import Mapping, Sequence

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


def gap(
    first: Mapping[int, float], second: Mapping[int, float], usual: Sequence[float] = ()
) -> tuple[float, float | None]:
    """The mean difference of two rows by seed, and its spread; None where it is not known.

    A seed draws the data's division too, which moves all rows alike: rows are compared on the
    seeds that both have. On two or more the spread is the deviation of the differences; on one it
    is that of two runs with the deviation of `usual`, the reference's values.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        own, other = list(first.values()), list(second.values())
        return statistics.fmean(own) - statistics.fmean(other), spread(own, other, usual)
    differences = [first[seed] - second[seed] for seed in common]
    if len(common) > 1:
        return statistics.fmean(differences), statistics.stdev(differences)
    known = [v for v in (usual, list(first.values()), list(second.values())) if len(v) > 1]
    return differences[0], math.hypot(*[statistics.stdev(known[0])] * 2) if known else None


def verdict(recipe: Recipe, scale: str, entry: Entry, reference: Entry | None) -> str:
    """What is to be said of an entry beside the paper's number."""
    itself = entry.row == recipe.reference
    if scale == "smoke":  # it shows that everything runs, and nothing about the paper
        return NONE
    if entry.paper is None or (itself and (scale != "paper" or recipe.measure == "time")):
        return NONE
    if entry.mean is None:
        return FAILED if entry.failures else NONE
    ours, apart = entry.mean - 1.0, entry.deviation  # a ratio of times is one to the reference
    if recipe.measure == "accuracy":
        against = reference if reference and reference.values else entry
        mine, theirs = entry.by_seed(entry.values), against.by_seed(against.values)
        ours, apart = gap(mine, theirs, against.values)
    mark = ONE_SEED if apart is None else ""
    tolerance = max(_CLOSE[recipe.measure], entry.paper_spread or 0.0) + _ROUNDING
    if scale == "paper" and abs(entry.mean - entry.paper) <= tolerance:
        return WITHIN + mark
    if not itself and _same_direction(ours, entry, reference, apart or 0.0):
        return DIRECTION + mark
    if not itself and (reference is None or reference.mean is None or reference.paper is None):
        return NONE
    return NOT + mark


def _same_direction(ours: float, entry: Entry, reference: Entry | None, apart: float) -> bool:
    """Whether our difference from the reference goes the paper's way, beyond the spread."""
    if reference is None or reference.mean is None:
        return False
    if entry.paper is None or reference.paper is None:
        return False
    theirs = entry.paper - reference.paper
    if math.isclose(theirs, 0.0, abs_tol=_ROUNDING):
        return abs(ours) <= apart
    return ours * theirs > 0 and abs(ours) > apart
