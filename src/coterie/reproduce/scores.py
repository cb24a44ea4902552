"""Scores: of one run, of a cell over its seeds, and of a whole study.

All accuracies are fractions here, whatever the paper prints.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.core.formatting import TextTable
from coterie.engine.record import RoundEvent
from coterie.report.line_chart import Curve
from coterie.reproduce.plan import Cell, Point, Study
from coterie.reproduce.recipe import Column, Recipe, Row

NONE = "-"  # the verdict where there is nothing to compare
_LOSSES = ("train_loss", "server_loss")  # a stage in which no round has one trains nothing


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

    def find_round(self, target: float) -> int | None:
        """Find the first training round in which the curve reached a target."""
        return next((round for round, value in self.curve if value >= target), None)


def score_run(history: Sequence[RoundEvent], cell: Cell, seed: int, folder: str) -> Score:
    """Score a finished run, up to the training round `at` of the column if that is given."""
    metric, by, at = cell.metric, cell.chosen_by, cell.column.at
    stages = _find_training(history)
    trained = [event for event in history if event.stage in stages][:at]
    curve = tuple(
        (number, event.metrics[metric])
        for number, event in enumerate(trained, start=1)
        if metric in event.metrics
    )
    choices = [event.metrics[by] for event in trained if by in event.metrics]
    failure = "" if curve else f"the run has no metric {metric!r}"
    if at is not None and len(trained) < at:
        failure = f"the run has {len(trained)} training rounds, not {at}"
    return Score(
        seed,
        folder,
        value=curve[-1][1] if curve and not failure else None,
        chosen_by=choices[-1] if choices else None,
        curve=curve,
        rounds=len(trained),
        seconds=statistics.median(event.seconds for event in trained) if trained else 0.0,
        failure=failure,
    )


def _find_training(history: Sequence[RoundEvent]) -> set[str]:
    """Find the stages that train: those with a loss, or all where none has one."""
    stages = {event.stage for event in history if any(name in event.metrics for name in _LOSSES)}
    return stages or {event.stage for event in history}


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
        best: tuple[float, Point] | None = None
        for point in cell.points:
            first = self.of(cell, point).get(0)
            if first is None or first.value is None or first.chosen_by is None:
                continue
            if best is None or first.chosen_by > best[0]:
                best = first.chosen_by, point
        return best[1] if best else None

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
    rounds: tuple[int | None, ...] = ()  # to the target, by seed; None: never
    length: int = 0  # training rounds of a run
    paper_rounds: str = ""
    speedup: float | None = None
    seconds: tuple[float, ...] = ()  # of a round, the median, by seed
    ratios: tuple[float, ...] = ()  # of these to the reference's, by seed
    verdict: str = NONE
    numbers: tuple[int, ...] = ()  # the seeds, in the order of the values; empty: from 0 on
    chosen: str = ""
    grid: tuple[GridScore, ...] = ()
    failures: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    curve: Curve = ()

    def by_seed(self, values: Sequence[float] | None = None) -> dict[int, float]:
        """Map seeds to values: to those of the cell, unless others are given."""
        values = self.values if values is None else values
        return dict(zip(self.numbers or range(len(values)), values, strict=False))

    @property
    def ratio(self) -> float | None:
        """The mean ratio of time."""
        return statistics.fmean(self.ratios) if self.ratios else None

    @property
    def counted_rounds(self) -> tuple[float, ...]:
        """Rounds to the target; a run that missed it counts as `length + 1` rounds."""
        return tuple(self.length + 1 if rounds is None else rounds for rounds in self.rounds)


@dataclass(frozen=True)
class Outcome:
    """What a study scored, as far as it was run."""

    study: Study
    finished: int
    total: int
    cells: Mapping[tuple[str, str], CellScore] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)  # column -> its target, if any
    tables: tuple[TextTable, ...] = ()  # instead of one for every column

    def cell(self, row: str, column: str) -> CellScore:
        """Find the score of a row in a column; an empty one where it was not run."""
        return self.cells.get((row, column), CellScore(row, column))

    def reference(self, column: str) -> CellScore:
        """Find the score of the reference row in a column."""
        return self.cell(self.study.recipe.reference, column)

    @property
    def failures(self) -> list[str]:
        """Every run that failed, with its reason."""
        return [
            f"{cell.row}, {cell.column}, {failure}"
            for cell in self.cells.values()
            for failure in cell.failures
        ]


def summarise(scores: Scores) -> Outcome:
    """Summarise the scores of runs by cell, without a verdict."""
    study = scores.study
    cells: dict[tuple[str, str], CellScore] = {}
    targets: dict[str, float] = {}
    for column in study.columns:
        runs = {c.row.name: _list_runs(scores, c) for c in study.cells if c.column is column}
        reference = [run for run in runs.get(study.recipe.reference, []) if run.value is not None]
        target = _find_target(column, reference)
        if target is not None:
            targets[column.name] = target
        for cell in study.cells:
            if cell.column is column:
                score = _summarise_cell(scores, cell, runs[cell.row.name], reference, target)
                cells[cell.row.name, column.name] = score
    return Outcome(study, scores.finished, study.total, cells, targets)


def _list_runs(scores: Scores, cell: Cell) -> list[Score]:
    """List the runs that represent a cell: of the chosen point, or all where none is chosen."""
    point = scores.choose(cell)
    if point is not None:
        return [run for _, run in sorted(scores.of(cell, point).items())]
    return [run for tried in cell.points for run in scores.of(cell, tried).values()]


def _find_target(column: Column, reference: Sequence[Score]) -> float | None:
    """Find the accuracy to reach; that of the reference is the mean over its seeds."""
    if column.target != "reference":
        return column.target
    return statistics.fmean(map(_get_value, reference)) if reference else None


def _summarise_cell(
    scores: Scores,
    cell: Cell,
    runs: Sequence[Score],
    reference: Sequence[Score],
    target: float | None,
) -> CellScore:
    recipe, row, column = scores.study.recipe, cell.row, cell.column.name
    done = [run for run in runs if run.value is not None]
    itself = row.name == recipe.reference
    ratios = _divide_times(done, reference)
    values = ratios if recipe.measure == "time" else tuple(map(_get_value, done))
    rounds = tuple(_count_rounds(cell.column, run, target, itself) for run in done)
    shared = [r for r in reference if r.seed in {run.seed for run in done}] or reference
    theirs = [_count_rounds(cell.column, run, target, itself=True) for run in shared]
    point = scores.choose(cell)
    return CellScore(
        row.name,
        column,
        seeds=len(done),
        values=values,
        mean=statistics.fmean(values) if values else None,
        deviation=deviation(values),
        paper=_find_printed(recipe, row, column),
        paper_spread=recipe.to_fraction(row.spread[column]) if column in row.spread else None,
        rounds=rounds if target is not None else (),
        length=max((run.rounds for run in done), default=0),
        paper_rounds=str(row.rounds.get(column, "")),
        speedup=_divide_rounds(theirs, rounds) if target is not None else None,
        seconds=tuple(run.seconds for run in done),
        ratios=ratios,
        numbers=tuple(run.seed for run in done),
        chosen=point.name if point else "",
        grid=_list_grid(scores, cell),
        failures=_list_failures(scores, cell),
        folders=tuple(run.folder for run in runs),
        curve=_average_curves(done),
    )


def _get_value(run: Score) -> float:
    assert run.value is not None  # only finished runs are asked
    return run.value


def _count_rounds(column: Column, run: Score, target: float | None, itself: bool) -> int | None:
    """Count rounds to the target; the reference reaches its own accuracy at its end."""
    if target is None:
        return None
    return run.rounds if itself and column.target == "reference" else run.find_round(target)


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
    if not theirs:
        return ()
    mean = statistics.fmean(theirs.values())
    return tuple(run.seconds / theirs.get(run.seed, mean) for run in runs)


def _find_printed(recipe: Recipe, row: Row, column: str) -> float | None:
    """Find the paper's number: an accuracy as a fraction, or a ratio of times."""
    if recipe.measure == "time":
        own, other = row.seconds.get(column), recipe.row(recipe.reference).seconds.get(column)
        return own / other if own and other else None
    return recipe.to_fraction(row.value[column]) if column in row.value else None


def _list_grid(scores: Scores, cell: Cell) -> tuple[GridScore, ...]:
    if len(cell.points) == 1:
        return ()
    chosen = scores.choose(cell)
    grid = []
    for point in cell.points:
        first = scores.of(cell, point).get(0, Score(0, ""))
        grid.append(GridScore(point.name, first.value, first.chosen_by, point is chosen))
    return tuple(grid)


def _list_failures(scores: Scores, cell: Cell) -> tuple[str, ...]:
    return tuple(
        f"{point.name + ', ' if point.name else ''}seed {seed}: {run.failure}"
        for point in cell.points
        for seed, run in scores.of(cell, point).items()
        if run.failure
    )


def _average_curves(runs: Sequence[Score]) -> Curve:
    """Average curves over seeds, in the rounds that all of them measured."""
    if not runs:
        return ()
    curves = [dict(run.curve) for run in runs]
    return tuple(
        (round, statistics.fmean(curve[round] for curve in curves))
        for round in curves[0]
        if all(round in curve for curve in curves)
    )


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None where there are fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def spread(
    first: Sequence[float], second: Sequence[float], reference: Sequence[float] = ()
) -> float | None:
    """The spread of the difference of two rows; None where none of them has two seeds.

    A single value takes the deviation of the reference, else that of the other row.
    """
    known = [deviation(values) for values in (reference, first, second)]
    usual = next((value for value in known if value is not None), None)
    if usual is None:
        return None
    return math.hypot(*(usual if value is None else value for value in known[1:]))


def gap(
    first: Mapping[int, float], second: Mapping[int, float], usual: Sequence[float] = ()
) -> tuple[float, float | None]:
    """The mean difference of two rows by seed, and its spread; None where that is not known.

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
