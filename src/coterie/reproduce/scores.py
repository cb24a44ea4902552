"""Scores: of one run, of a cell over its seeds, and of a whole study.

All accuracies are fractions here, whatever the paper prints.
"""

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.core.formatting import TextTable
from coterie.engine.record import RoundEvent
from coterie.report.line_chart import Curve
from coterie.report.spread import deviation
from coterie.reproduce.plan import Cell, Point, Study
from coterie.reproduce.recipe import Column, Recipe, Row

NONE = "-"  # the verdict where there is nothing to compare
WINDOWS = (1, 5, 10)  # rounds whose mean is held against a target; 1 is how papers count
_LOSSES = ("train_loss", "server_loss")
Rounds = tuple[int | None, ...]  # to a target, by seed; None: never
Band = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Score:
    """What one run scored in one cell."""

    seed: int
    folder: str
    value: float | None = None  # None: the metric was never measured
    chosen_by: float | None = None  # the metric by which the point of a grid is chosen
    curve: Curve = ()
    rounds: int = 0  # training rounds up to the value
    seconds: float = 0.0  # of a round, the median
    failure: str = ""


def find_round(curve: Curve, target: float, window: int = 1) -> int | None:
    """Find the first round r at which the mean over rounds r - window + 1, ..., r is at a target.

    A single round above the target may be chance; it decides where the window is 1. Rounds without
    a measurement are passed over. Before round `window` there is no mean.
    """
    first = 0
    for last, (round, _) in enumerate(curve, start=1):
        while curve[first][0] <= round - window:
            first += 1
        mean = statistics.fmean(value for _, value in curve[first:last])
        if round >= window and mean >= target:
            return round
    return None


def score_run(history: Sequence[RoundEvent], cell: Cell, seed: int, folder: str) -> Score:
    """Score a finished run, up to the training round `at` of the column if that is given."""
    metric, by, at = cell.metric, cell.chosen_by, cell.column.at
    # Stages that train have a loss; where none has one, all count.
    stages = {event.stage for event in history if any(name in event.metrics for name in _LOSSES)}
    stages = stages or {event.stage for event in history}
    trained = [event for event in history if event.stage in stages][:at]
    numbered = enumerate(trained, start=1)
    curve = tuple((n, event.metrics[metric]) for n, event in numbered if metric in event.metrics)
    choices = [event.metrics[by] for event in trained if by in event.metrics]
    failure = "" if curve else f"the run has no metric {metric!r}"
    if at is not None and len(trained) < at:
        failure = f"the run has {len(trained)} training rounds, not {at}"
    value = None if failure else curve[-1][1]
    chosen_by = choices[-1] if choices else None
    seconds = statistics.median(event.seconds for event in trained) if trained else 0.0
    return Score(seed, folder, value, chosen_by, curve, len(trained), seconds, failure)


@dataclass(frozen=True)
class Scores:
    """The scores of a study's runs so far."""

    study: Study
    _by_point: dict[tuple[str, str, str], dict[int, Score]] = field(default_factory=dict)

    def add(self, row: str, column: str, point: str, score: Score) -> None:
        """Keep the score of a run."""
        self._by_point.setdefault((row, column, point), {})[score.seed] = score

    def of(self, cell: Cell, point: Point) -> Mapping[int, Score]:
        """The scores of a point, by seed."""
        return self._by_point.get((cell.row.name, cell.column.name, point.name), {})

    def choose(self, cell: Cell) -> Point | None:
        """Choose the point of a cell that is best on the first seed; None where all failed."""
        if len(cell.points) == 1:
            return cell.points[0]
        tried = []
        for point in cell.points:
            first = self.first(cell, point)
            if first.value is not None and first.chosen_by is not None:
                tried.append((first.chosen_by, point))
        return max(tried, key=lambda pair: pair[0])[1] if tried else None

    def first(self, cell: Cell, point: Point) -> Score:
        """The score of a point on the study's first seed; an empty one where it was not run."""
        seed = self.study.first
        return self.of(cell, point).get(seed, Score(seed, ""))

    @property
    def finished(self) -> int:
        """The number of runs that did not fail."""
        return sum(not s.failure for seeds in self._by_point.values() for s in seeds.values())


@dataclass(frozen=True)
class GridScore:
    """What a point of a grid scored on the first seed."""

    name: str
    value: float | None
    chosen_by: float | None
    chosen: bool


@dataclass(frozen=True)
class CellScore:
    """What a row scored in a column, over its seeds; `outcome.json` has these fields."""

    row: str
    column: str
    seeds: int = 0  # finished
    values: tuple[float, ...] = ()
    mean: float | None = None
    deviation: float | None = None  # sample standard deviation over seeds; None for one seed
    paper: float | None = None
    paper_spread: float | None = None
    rounds: Rounds = ()  # to the target
    smoothed: Mapping[int, Rounds] = field(default_factory=dict)  # by means of so many rounds
    length: int = 0  # training rounds of a run
    paper_rounds: str = ""
    speedup: float | None = None
    smoothed_speedup: Mapping[int, float | None] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()  # of a round, the median, by seed
    ratios: tuple[float, ...] = ()  # of these to the reference's, by seed
    ratio: float | None = None  # their mean
    verdict: str = NONE
    numbers: tuple[int, ...] = ()  # the seeds, in the order of the values; empty: from 0 on
    chosen: str = ""
    grid: tuple[GridScore, ...] = ()
    failures: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    curve: Curve = ()
    band: Band = ()  # lowest and highest over seeds in the rounds of the curve

    def by_seed(self, values: Sequence[float] | None = None) -> dict[int, float]:
        """Map seeds to values: to those of the cell, unless others are given."""
        values = self.values if values is None else values
        return dict(zip(self.numbers or range(len(values)), values, strict=False))

    def rounds_over(self, window: int) -> Rounds:
        """Rounds to the target by the mean of so many rounds; empty where that is not known."""
        return self.rounds if window == 1 else self.smoothed.get(window, ())

    def on_seeds_of(self, other: "CellScore") -> "CellScore":
        """Keep the rounds on the seeds that another cell has too; all of them where none is."""
        common = [seed in other.by_seed() for seed in self.by_seed()]
        if not any(common):
            return self

        def keep(rounds: Rounds) -> Rounds:
            return tuple(itertools.compress(rounds, common))

        smoothed = {window: keep(rounds) for window, rounds in self.smoothed.items()}
        return replace(self, rounds=keep(self.rounds), smoothed=smoothed)


@dataclass(frozen=True)
class Outcome:
    """What a study scored, as far as it was run."""

    study: Study
    finished: int
    total: int
    cells: dict[tuple[str, str], CellScore] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)  # by column, the mean over seeds
    tables: tuple[TextTable, ...] = ()  # instead of one for every column

    def cell(self, row: str, column: str) -> CellScore:
        """Find the score of a row in a column; an empty one where it was not run."""
        return self.cells.get((row, column), CellScore(row, column))

    def reference(self, column: str) -> CellScore:
        """Find the score of the reference row in a column."""
        return self.cell(self.study.recipe.reference, column)


@dataclass(frozen=True)
class _Target:
    """The accuracy that rounds are counted to, which may be another one on every seed."""

    mean: float
    by_seed: Mapping[int, float] = field(default_factory=dict)

    def of(self, seed: int) -> float:
        """Return the target on a seed: the mean on one that the reference lacks."""
        return self.by_seed.get(seed, self.mean)


def summarise(scores: Scores) -> Outcome:
    """Summarise the scores of runs by cell, without a verdict."""
    study = scores.study
    outcome = Outcome(study, scores.finished, study.total)
    for cell in study.cells:
        column, usual = cell.column, study.cell(study.recipe.reference, cell.column.name)
        runs = _list_runs(scores, usual) if usual else []
        reference = [run for run in runs if run.value is not None]
        targets = _find_targets(column, reference)
        if 1 in targets:
            outcome.targets[column.name] = targets[1].mean
        score = _summarise_cell(scores, cell, reference, targets)
        outcome.cells[score.row, score.column] = score
    return outcome


def _find_targets(column: Column, reference: Sequence[Score]) -> dict[int, _Target]:
    """Find the target by window; that of the reference is where its mean of n rounds ends.

    It is one of each seed, so that a run keeps its rounds when the reference gets another seed.
    A longer window lags behind a rising curve, and so it does at the reference's own end.
    """
    if column.target is None:
        return {}
    if column.target != "reference":
        return dict.fromkeys(WINDOWS, _Target(column.target))
    targets = {}
    for window in WINDOWS:
        measured = ((run.seed, _find_end(run, window)) for run in reference)
        ends = {seed: end for seed, end in measured if end is not None}
        if ends:
            targets[window] = _Target(statistics.fmean(ends.values()), ends)
    return targets


def _find_end(run: Score, window: int) -> float | None:
    """Find the mean of the last rounds of a run; None where none of them was measured."""
    if window == 1:
        return run.value
    return _average([value for round, value in run.curve if round > run.rounds - window])


def _list_runs(scores: Scores, cell: Cell) -> list[Score]:
    """List the runs that represent a cell: of the chosen point, or all where none is chosen."""
    point = scores.choose(cell)
    if point is not None:
        return [run for _, run in sorted(scores.of(cell, point).items())]
    return [run for tried in cell.points for run in scores.of(cell, tried).values()]


def _summarise_cell(
    scores: Scores, cell: Cell, reference: Sequence[Score], targets: Mapping[int, _Target]
) -> CellScore:
    recipe, row, column = scores.study.recipe, cell.row, cell.column.name
    runs, point = _list_runs(scores, cell), scores.choose(cell)
    done = [run for run in runs if run.value is not None]
    ratios = values = _divide_times(done, reference)
    if recipe.measure != "time":
        values = tuple(run.value for run in runs if run.value is not None)
    rounds, speedups = dict[int, Rounds](), dict[int, float | None]()
    shared = [r for r in reference if r.seed in {run.seed for run in done}] or reference
    shortest = min((run.rounds for run in (*done, *shared)), default=1)
    for window, target in targets.items():
        if window <= shortest:
            count = functools.partial(_count_rounds, cell.column, target, window)
            rounds[window] = tuple(count(run, row.name == recipe.reference) for run in done)
            theirs = [count(run, itself=True) for run in shared]
            speedups[window] = _divide_rounds(theirs, rounds[window])
    return CellScore(
        row.name,
        column,
        seeds=len(done),
        values=values,
        mean=_average(values),
        deviation=deviation(values),
        paper=_find_printed(recipe, row, column),
        paper_spread=recipe.to_fraction(row.spread[column]) if column in row.spread else None,
        rounds=rounds.pop(1, ()),
        smoothed=rounds,
        length=max((run.rounds for run in done), default=0),
        paper_rounds=str(row.rounds.get(column, "")),
        speedup=speedups.pop(1, None),
        smoothed_speedup=speedups,
        seconds=tuple(run.seconds for run in done),
        ratios=ratios,
        ratio=_average(ratios),
        numbers=tuple(run.seed for run in done),
        chosen=point.name if point else "",
        grid=_list_grid(scores, cell),
        failures=_list_failures(scores, cell),
        folders=tuple(run.folder for run in runs),
        curve=average_curves(done),
        band=find_band(done),
    )


def _average(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _count_rounds(
    column: Column, target: _Target, window: int, run: Score, itself: bool
) -> int | None:
    """Count rounds to the target; the reference reaches its own accuracy at its end."""
    own = itself and column.target == "reference"
    return run.rounds if own else find_round(run.curve, target.of(run.seed), window)


def _divide_rounds(reference: Sequence[int | None], rounds: Sequence[int | None]) -> float | None:
    """Divide the reference's rounds by a row's; None where a run never reached the target."""
    ours = [count for count in rounds if count is not None]
    theirs = [count for count in reference if count is not None]
    if not ours or not theirs or len(ours) < len(rounds) or len(theirs) < len(reference):
        return None
    return statistics.fmean(theirs) / statistics.fmean(ours)


def _divide_times(runs: Sequence[Score], reference: Sequence[Score]) -> tuple[float, ...]:
    """Divide seconds a round by the reference's on the same seed, else by their mean."""
    theirs = {run.seed: run.seconds for run in reference if run.seconds}
    mean = _average(list(theirs.values()))
    return tuple(run.seconds / theirs.get(run.seed, mean) for run in runs if mean)


def _find_printed(recipe: Recipe, row: Row, column: str) -> float | None:
    """Find the paper's number: an accuracy as a fraction, or a ratio of times."""
    if recipe.measure == "time":
        reference = next(other for other in recipe.rows if other.name == recipe.reference)
        own, other = row.seconds.get(column), reference.seconds.get(column)
        return own / other if own and other else None
    return recipe.to_fraction(row.value[column]) if column in row.value else None


def _list_grid(scores: Scores, cell: Cell) -> tuple[GridScore, ...]:
    chosen = scores.choose(cell)
    tried = [(point, scores.first(cell, point)) for point in cell.points]
    grid = [GridScore(p.name, first.value, first.chosen_by, p is chosen) for p, first in tried]
    return tuple(grid) if len(grid) > 1 else ()


def _list_failures(scores: Scores, cell: Cell) -> tuple[str, ...]:
    return tuple(
        f"{point.name + ', ' if point.name else ''}seed {seed}: {run.failure}"
        for point in cell.points
        for seed, run in scores.of(cell, point).items()
        if run.failure
    )


def average_curves(runs: Sequence[Score]) -> Curve:
    """Average curves over seeds, in the rounds that all of them measured."""
    shared = _list_shared(runs)
    return tuple((round, statistics.fmean(values)) for round, values in shared.items())


def find_band(runs: Sequence[Score]) -> Band:
    """Find the lowest and highest value over seeds in each round of the mean; empty for one run."""
    shared = _list_shared(runs) if len(runs) > 1 else {}
    return tuple((min(values), max(values)) for values in shared.values())


def _list_shared(runs: Sequence[Score]) -> dict[int, list[float]]:
    """List the values of all runs by round, in the rounds that all of them measured."""
    curves = [dict(run.curve) for run in runs]
    return {
        round: [curve[round] for curve in curves]
        for round in (curves[0] if curves else ())
        if all(round in curve for curve in curves)
    }
