"""Verdicts: whether scores match the paper's numbers, and whether its claims hold."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

from coterie.core.formatting import list_first
from coterie.report.spread import gap
from coterie.reproduce.plan import Study
from coterie.reproduce.recipe import Claim, Recipe
from coterie.reproduce.scores import NONE, WINDOWS, CellScore, Outcome, Scores, summarise

WITHIN, DIRECTION, NOT, FAILED = "within", "direction", "not reproduced", "failed"
HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested here"
ONE_SEED = " (one seed)"
_ROUNDING = 1e-9  # 0.71 - 0.70 is one point, whatever the last bits say
_CLOSE = {"accuracy": 0.01, "time": 0.05}  # how far from the paper is still within
Show = Callable[[float], str]  # formats a value as the paper does
_Test = tuple[bool, str, bool]  # passed in one column; its numbers; whether a spread is known


def conclude(scores: Scores) -> Outcome:
    """Summarise the scores of runs by cell, and judge every cell."""
    outcome, recipe, scale = summarise(scores), scores.study.recipe, scores.study.scale
    cells = {}
    for key, cell in outcome.cells.items():
        verdict = judge(recipe, scale, cell, outcome.reference(cell.column))
        cells[key] = replace(cell, verdict=verdict)
    return replace(outcome, cells=cells)


def judge(recipe: Recipe, scale: str, cell: CellScore, reference: CellScore) -> str:
    """Compare a cell's score with the paper's number."""
    itself = cell.row == recipe.reference
    if scale == "smoke":  # it shows that everything runs, and nothing about the paper
        return NONE
    if cell.paper is None or (itself and (scale != "paper" or recipe.measure == "time")):
        return NONE
    if cell.mean is None:
        return FAILED if cell.failures else NONE
    ours, apart = cell.mean - 1.0, cell.deviation  # a ratio of times is one to the reference
    if recipe.measure == "accuracy":
        other = reference if reference.values else cell
        ours, apart = gap(cell.by_seed(), other.by_seed())
    mark = ONE_SEED if apart is None else ""
    tolerance = max(_CLOSE[recipe.measure], cell.paper_spread or 0.0) + _ROUNDING
    if scale == "paper" and abs(cell.mean - cell.paper) <= tolerance:
        return WITHIN + ("" if _is_sure(cell) else ONE_SEED)
    if not itself:
        if reference.mean is None or reference.paper is None:
            return NONE
        theirs = cell.paper - reference.paper
        if apart is None and _is_tie(theirs):  # nothing to hold a difference against
            return NONE
        if _agree(ours, theirs, apart or 0.0):
            return DIRECTION + mark
    return NOT + mark


def _agree(ours: float, theirs: float, apart: float) -> bool:
    """Return whether our difference has the sign of the paper's, beyond the spread."""
    if _is_tie(theirs):
        return abs(ours) <= apart
    return ours * theirs > 0 and abs(ours) > apart


def _is_tie(difference: float) -> bool:
    """Return whether the paper prints the same number for both rows."""
    return math.isclose(difference, 0.0, abs_tol=_ROUNDING)


@dataclass(frozen=True)
class Finding:
    """A tested claim, with the numbers that the verdict rests on."""

    text: str
    verdict: str
    numbers: str
    by_window: Mapping[int, str] = field(default_factory=dict)  # of `faster`: by means of n rounds


def check_claim(claim: Claim, outcome: Outcome, show: Show) -> Finding:
    """Test a claim on the scores of a study."""
    columns, missing = _find_columns(claim, outcome)
    if outcome.study.scale == "smoke" and outcome.study.recipe.measure != "cost":
        missing = "the smoke scale says nothing about the paper"
    if missing:
        return Finding(claim.text, UNTESTED, missing)
    case = _Case(claim, columns, outcome, show)
    verdict, numbers = _test(case)
    where = _name_columns(claim, columns, outcome.study)
    if claim.kind != "faster":
        return Finding(claim.text, verdict + where, numbers)
    verdicts = {1: verdict}
    for window in WINDOWS[1:]:
        if all(cell.rounds_over(window) for pair in case.pairs() for cell in pair):
            verdicts[window] = _test(replace(case, window=window))[0]
            if _find_unreached(claim, columns, outcome, window):
                verdicts[window] = UNTESTED
    return Finding(claim.text, _join_verdicts(verdicts) + where, numbers, verdicts)


def _test(case: "_Case") -> tuple[str, str]:
    """Test a claim in all its columns: the verdict, and its numbers."""
    passed, numbers, sure = zip(*_CHECKS[case.claim.kind](case), strict=True)
    verdict = (HOLDS if all(passed) else FAILS) + ("" if all(sure) else ONE_SEED)
    return verdict, "; ".join(numbers)


def _join_verdicts(verdicts: Mapping[int, str]) -> str:
    """Give the verdict by single rounds, and say where that by means of rounds differs."""
    plain = {n: verdict.removesuffix(ONE_SEED) for n, verdict in verdicts.items()}
    other = [n for n, verdict in plain.items() if verdict not in (plain[1], UNTESTED)]
    if not other:
        return verdicts[1]
    return f"{verdicts[1]}; over {' and '.join(map(str, other))} rounds: {plain[other[0]]}"


def _name_columns(claim: Claim, columns: Sequence[str], study: Study) -> str:
    """Name the columns that were run, where a claim is about all and this scale has more."""
    belong = [column.name for column in study.recipe.columns if study.scale in column.scales]
    if claim.columns or set(columns) >= set(belong):
        return ""
    return f"; run in {list_first(columns)} alone"


def _find_columns(claim: Claim, outcome: Outcome) -> tuple[list[str], str]:
    """Find the columns that a claim is about, and what is missing to test it.

    A column that does not belong to the scale by its own `scales` is not missed.
    """
    study = outcome.study
    rows = [row for row in (claim.above, claim.below) if row]
    belong = [c.name for c in study.recipe.columns if study.scale in c.scales]
    run = [column.name for column in study.columns]
    both = [name for name in run if all(study.cell(row, name) for row in rows)]
    named = [name for name in claim.columns if name in belong] if claim.columns else both or run
    if claim.kind == "peak" and claim.at not in named:
        named = [*named, claim.at]
    if left := [name for name in named if name not in run]:
        return named, f"{', '.join(left)} is left out"
    if len(named) < (2 if claim.kind in ("monotone", "peak", "gap-shrinks") else 1):
        return named, "too few of its columns belong to this scale"
    for row, name in product(rows, named):
        if outcome.cell(row, name).mean is None:
            return named, f"{row} in {name} has no value"
    if claim.kind == "faster" and (name := _find_unreached(claim, named, outcome, 1)):
        return named, f"{name}: neither reached the target"
    return named, ""


def _find_unreached(claim: Claim, columns: Sequence[str], outcome: Outcome, window: int) -> str:
    """Find a column in which neither row reached the target by the mean of so many rounds."""
    for name in columns:
        cells = (outcome.cell(row, name) for row in (claim.above, claim.below))
        if all(rounds is None for cell in cells for rounds in cell.rounds_over(window)):
            return name
    return ""


@dataclass(frozen=True)
class _Case:
    """A claim with the columns and scores that it is tested on."""

    claim: Claim
    columns: Sequence[str]
    outcome: Outcome
    show: Show
    window: int = 1  # rounds whose mean is held against a target

    def cells(self, row: str) -> list[CellScore]:
        """List the scores of a row in every column."""
        return [self.outcome.cell(row, column) for column in self.columns]

    def pairs(self) -> Iterator[tuple[CellScore, CellScore]]:
        """List the scores of the two rows of the claim in every column."""
        return zip(self.cells(self.claim.above), self.cells(self.claim.below), strict=True)

    def gaps(self) -> Iterator[tuple[float, float | None, str]]:
        """In every column the difference of the two rows, its spread, and both as text."""
        for first, second in self.pairs():
            difference, apart = gap(first.by_seed(), second.by_seed())
            means = f"{self.show(_mean(first))} against {self.show(_mean(second))}"
            sign = "+" if difference >= 0 else "-"
            text = f"{first.column}: {means}, {sign}{self.show(abs(difference))} by seed"
            text += "" if apart is None else f" (spread {self.show(apart)})"
            yield difference, apart, text

    def test_alone(self, cell: CellScore, passed: bool) -> _Test:
        """Test a cell by itself."""
        return passed, f"{cell.column}: {self.show(_mean(cell))}", _is_sure(cell)


def _check_gaps(case: _Case) -> Iterator[_Test]:
    """Test the difference of two rows in every column."""
    margin, last = case.claim.margin, math.inf
    for difference, apart, text in case.gaps():
        passed = {
            "above": difference > max(margin, apart or 0.0),
            "not-above": difference <= margin,
            "closer": abs(difference) <= margin,
            "gap-shrinks": difference < last + margin,
        }
        yield passed[case.claim.kind], text, apart is not None
        last = difference


def _check_times(case: _Case) -> Iterator[_Test]:
    """At least `margin` times as much."""
    counted = case.outcome.study.recipe.measure == "cost"  # nothing is drawn there
    for first, second in case.pairs():
        ours, theirs = _mean(first), _mean(second)
        ratio = ours / theirs if theirs else math.inf
        times = f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.3g} times"
        text = f"{first.column}: {case.show(ours)} against {case.show(theirs)}, {times}"
        passed = ours * (1 + _ROUNDING) >= case.claim.margin * theirs
        yield passed, text, counted or (_is_sure(first) and _is_sure(second))


def _check_falls(case: _Case) -> Iterator[_Test]:
    """The curve ends below its highest point, by more than the margin."""
    for cell in case.cells(case.claim.above):
        (round, best), (_, end) = max(cell.curve, key=lambda point: point[1]), cell.curve[-1]
        text = f"{cell.column}: {case.show(end)} at the end, {case.show(best)} after round {round}"
        yield best - end > case.claim.margin, text, _is_sure(cell)


def _check_monotone(case: _Case) -> Iterator[_Test]:
    """Every column's value is beyond that of the column before."""
    sign = 1.0 if case.claim.direction == "up" else -1.0
    cells = case.cells(case.claim.above)
    yield case.test_alone(cells[0], passed=True)
    for before, cell in pairwise(cells):
        passed = sign * (_mean(cell) - _mean(before)) > -case.claim.margin
        yield case.test_alone(cell, passed)


def _check_peak(case: _Case) -> Iterator[_Test]:
    """No column's value is above that of the column `at`."""
    top = _mean(case.outcome.cell(case.claim.above, case.claim.at))
    for cell in case.cells(case.claim.above):
        yield case.test_alone(cell, _mean(cell) <= top + case.claim.margin)


def _check_faster(case: _Case) -> Iterator[_Test]:
    """Fewer rounds to the target, beyond the spread."""
    for first, second in case.pairs():
        ours, theirs = (_rounds_by_seed(case, cell) for cell in (first, second))
        fewer, apart = gap(theirs, ours)
        shown, other = first.on_seeds_of(second), second.on_seeds_of(first)
        counts = [
            (f"over {window}: " if window > 1 else "")
            + f"{format_rounds(shown, window)} against {format_rounds(other, window)}"
            for window in WINDOWS
            if first.rounds_over(window) and second.rounds_over(window)
        ]
        smoothed = f" ({', '.join(counts[1:])})" if len(counts) > 1 else ""
        text = f"{first.column}: {counts[0]} rounds{smoothed}"
        yield fewer > (apart or 0.0), text, apart is not None


_CHECKS = {
    **dict.fromkeys(("above", "not-above", "closer", "gap-shrinks"), _check_gaps),
    "faster": _check_faster,
    "monotone": _check_monotone,
    "peak": _check_peak,
    "falls": _check_falls,
    "times": _check_times,
}


def _rounds_by_seed(case: _Case, cell: CellScore) -> dict[int, float]:
    """Rounds to the target, `length + 1` for a run that missed it."""
    counts = cell.rounds_over(case.window)
    return cell.by_seed([cell.length + 1 if r is None else r for r in counts])


def _is_sure(cell: CellScore) -> bool:
    """Return whether a row has more than one seed."""
    return len(cell.values) > 1


def format_rounds(cell: CellScore, window: int = 1) -> str:
    """Format the mean number of rounds to the target, and how many seeds never reached it."""
    counts = cell.rounds_over(window)
    reached = [rounds for rounds in counts if rounds is not None]
    if not reached:
        return f">{cell.length}" if counts else NONE
    never = len(counts) - len(reached)
    mean = f"{statistics.fmean(reached):.1f}".removesuffix(".0")
    return f"{mean} ({never} of {len(counts)} never)" if never else mean


def _mean(cell: CellScore) -> float:
    assert cell.mean is not None  # `_find_columns` looked for missing values
    return cell.mean
