"""The sentences of a paper, tested on what was run."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coterie.reproduce.entries import Entry, Outcome
from coterie.reproduce.plan import Plan
from coterie.reproduce.recipe import Claim
from coterie.reproduce.verdict import ONE_SEED, gap, spread

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested here"
Show = Callable[[float], str]


@dataclass(frozen=True)
class Finding:
    """What came of a claim, with the numbers it rests on."""

    text: str
    verdict: str
    numbers: str


def test(claims: Sequence[Claim], plan: Plan, outcome: Outcome, show: Show) -> list[Finding]:
    """Every claim; `show` writes an accuracy as the paper does."""
    return [_test(claim, plan, outcome, show) for claim in claims]


def _test(claim: Claim, plan: Plan, outcome: Outcome, show: Show) -> Finding:
    columns, missing = _columns(claim, plan, outcome)
    if plan.scale == "smoke" and plan.recipe.measure != "cost":
        missing = "the smoke scale says nothing about the paper"
    if missing:
        return Finding(claim.text, UNTESTED, missing)
    if claim.kind == "faster":
        return _faster(claim, columns, outcome)
    check = _CHECKS[claim.kind]
    results = list(check(claim, columns, outcome, show))
    fine = all(result.fine for result in results)
    return _finding(claim, fine, results)


@dataclass(frozen=True)
class _Result:
    fine: bool
    words: str
    sure: bool  # a spread is known


def _finding(claim: Claim, fine: bool, results: Sequence[_Result]) -> Finding:
    mark = "" if all(result.sure for result in results) else ONE_SEED
    numbers = "; ".join(result.words for result in results)
    return Finding(claim.text, (HOLDS if fine else FAILS) + mark, numbers)


def _columns(claim: Claim, plan: Plan, outcome: Outcome) -> tuple[list[str], str]:
    """The columns that a claim is about, and what is missing to test it.

    A column that does not belong to the scale by its own `scales` is not missed.
    """
    belong = [c.name for c in plan.recipe.columns if plan.scale in c.scales]
    run = [column.name for column in plan.columns]
    both = [name for name in run if all(plan.cell(row, name) for row in _rows(claim))]
    named = [name for name in claim.columns if name in belong] if claim.columns else both or run
    if claim.kind == "peak" and claim.at not in named:
        named = [*named, claim.at]
    if left := [name for name in named if name not in run]:
        return named, f"{', '.join(left)} is left out"
    if len(named) < (2 if claim.kind in ("monotone", "peak", "gap-shrinks") else 1):
        return named, "too few of its columns belong to this scale"
    for row in _rows(claim):
        for name in named:
            if outcome.entry(row, name).mean is None:
                return named, f"{row} in {name} has no value"
    return named, ""


def _rows(claim: Claim) -> list[str]:
    return [row for row in (claim.above, claim.below) if row]


def _above(claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show) -> Iterator[_Result]:
    for column in columns:
        difference, apart, words = _difference(claim, column, outcome, show)
        yield _Result(
            difference > claim.margin and difference > (apart or 0.0), words, apart is not None
        )


def _closer(
    claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show
) -> Iterator[_Result]:
    for column in columns:
        difference, apart, words = _difference(claim, column, outcome, show)
        yield _Result(abs(difference) <= claim.margin, words, apart is not None)


def _not_above(
    claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show
) -> Iterator[_Result]:
    """Below, level, or above by no more than the margin."""
    for column in columns:
        difference, apart, words = _difference(claim, column, outcome, show)
        yield _Result(difference <= claim.margin, words, apart is not None)


def _times(claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show) -> Iterator[_Result]:
    """So many times as much."""
    counted = outcome.recipe.measure == "cost"  # nothing is drawn there
    for column in columns:
        first, second = (outcome.entry(row, column) for row in (claim.above, claim.below))
        ours, theirs = _mean(first), _mean(second)
        words = f"{column}: {show(ours)} against {show(theirs)}"
        ratio = ours / theirs if theirs else math.inf
        words += f", {ratio:,.0f} times" if ratio >= 100 else f", {ratio:.3g} times"
        sure = counted or _sure(first, outcome)
        yield _Result(ours * (1 + 1e-9) >= claim.margin * theirs, words, sure)


def _falls(claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show) -> Iterator[_Result]:
    """The curve ends below its highest point, by more than the margin."""
    for column in columns:
        entry = outcome.entry(claim.above, column)
        best, (_, end) = max(entry.curve, key=lambda point: point[1]), entry.curve[-1]
        words = f"{column}: {show(end)} at the end, {show(best[1])} after round {best[0]}"
        yield _Result(best[1] - end > claim.margin, words, _sure(entry, outcome))


def _gap_shrinks(
    claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show
) -> Iterator[_Result]:
    """Every column's difference is below that of the column before."""
    last: float | None = None
    for column in columns:
        difference, apart, words = _difference(claim, column, outcome, show)
        yield _Result(last is None or difference < last + claim.margin, words, apart is not None)
        last = difference


def _monotone(
    claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show
) -> Iterator[_Result]:
    """Every column's value is beyond that of the column before."""
    sign = 1.0 if claim.direction == "up" else -1.0
    entries = [outcome.entry(claim.above, column) for column in columns]
    yield _Result(True, _alone(entries[0], show), _sure(entries[0], outcome))
    for before, entry in pairwise(entries):
        fine = sign * (_mean(entry) - _mean(before)) > -claim.margin
        yield _Result(fine, _alone(entry, show), _sure(entry, outcome))


def _peak(claim: Claim, columns: Sequence[str], outcome: Outcome, show: Show) -> Iterator[_Result]:
    """No column's value is above that of the column `at`."""
    top = _mean(outcome.entry(claim.above, claim.at))
    for column in columns:
        entry = outcome.entry(claim.above, column)
        fine = _mean(entry) <= top + claim.margin
        yield _Result(fine, _alone(entry, show), _sure(entry, outcome))


_CHECKS = {
    "above": _above,
    "not-above": _not_above,
    "closer": _closer,
    "monotone": _monotone,
    "peak": _peak,
    "gap-shrinks": _gap_shrinks,
    "falls": _falls,
    "times": _times,
}


def _counted(outcome: Outcome, entry: Entry) -> dict[int, float]:
    """Rounds by seed; one where they are no measurement: the reference's to its own accuracy."""
    column = next((c for c in outcome.recipe.columns if c.name == entry.column), None)
    own = outcome.recipe.scales[outcome.scale].target or (column.target if column else None)
    itself = entry.row == outcome.recipe.reference and own == "reference"
    rounds = entry.by_seed(entry.counted_rounds)
    return dict(list(rounds.items())[:1]) if itself else rounds


def _faster(claim: Claim, columns: Sequence[str], outcome: Outcome) -> Finding:
    """Fewer rounds to the target, beyond the spread; never is more than any number."""
    results = []
    for column in columns:
        first, second = (outcome.entry(row, column) for row in (claim.above, claim.below))
        if not any(one is not None for one in (*first.rounds, *second.rounds)):
            return Finding(claim.text, UNTESTED, f"{column}: neither came to a target")
        usual = outcome.entry(outcome.recipe.reference, column)
        ours, theirs, others = (_counted(outcome, entry) for entry in (first, second, usual))
        fewer, apart = gap(theirs, ours, list(others.values()))
        words = f"{column}: {rounds_in_words(first)} against {rounds_in_words(second)} rounds"
        results.append(_Result(fewer > (apart or 0.0), words, apart is not None))
    return _finding(claim, all(result.fine for result in results), results)


def rounds_in_words(entry: Entry) -> str:
    """The mean number of rounds to the target, and how many seeds never came there."""
    came = [one for one in entry.rounds if one is not None]
    if not came:
        return f">{entry.length}" if entry.rounds else "-"
    never = len(entry.rounds) - len(came)
    words = f"{statistics.fmean(came):.1f}".removesuffix(".0")
    return f"{words} ({never} of {len(entry.rounds)} never)" if never else words


def _difference(
    claim: Claim, column: str, outcome: Outcome, show: Show
) -> tuple[float, float | None, str]:
    """Above minus below, the spread, and both in words."""
    first, second = (outcome.entry(row, column) for row in (claim.above, claim.below))
    usual = outcome.entry(outcome.recipe.reference, column)
    mine, theirs = first.by_seed(first.values), second.by_seed(second.values)
    difference, apart = gap(mine, theirs, usual.values)
    words = f"{column}: {show(_mean(first))} against {show(_mean(second))}"
    sign = "+" if difference >= 0 else "-"
    words += f", {sign}{show(abs(difference))} by seed"
    return difference, apart, words if apart is None else f"{words} (spread {show(apart)})"


def _alone(entry: Entry, show: Show) -> str:
    return f"{entry.column}: {show(_mean(entry))}"


def _sure(entry: Entry, outcome: Outcome) -> bool:
    """Whether a spread is known: the row's own, or the reference's."""
    usual = outcome.entry(outcome.recipe.reference, entry.column)
    return spread(entry.values, usual.values) is not None


def _mean(entry: Entry) -> float:
    assert entry.mean is not None  # what is missing was looked at before
    return entry.mean
