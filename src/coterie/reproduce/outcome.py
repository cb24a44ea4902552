"""What a recipe came to: means and spreads, rounds to targets, times, verdicts."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from coterie.reproduce.entries import Entry, Outcome, Tried
from coterie.reproduce.figures import Curve, Figures
from coterie.reproduce.plan import Cell, Plan
from coterie.reproduce.recipe import Column, Recipe, Row
from coterie.reproduce.run import Found, total
from coterie.reproduce.verdict import deviation, verdict


def conclude(found: Found) -> Outcome:
    """Everything that can be said of what was found so far."""
    plan = found.plan
    entries: dict[tuple[str, str], Entry] = {}
    targets: dict[str, float] = {}
    for column in plan.columns:
        runs = {cell.row.name: _runs(found, cell) for cell in plan.cells if cell.column is column}
        reference = runs.get(plan.recipe.reference, [])
        target = _target(column, reference)
        if target is not None:
            targets[column.name] = target
        for cell in plan.cells:
            if cell.column is column:
                entry = _entry(found, cell, runs[cell.row.name], reference, target)
                entries[cell.row.name, column.name] = entry
        _judge(plan, column, entries)
    return Outcome(plan.recipe, plan.scale, found.count(), total(plan), entries, targets)


def _runs(found: Found, cell: Cell) -> list[Figures]:
    """The runs that stand for a cell, failed ones too."""
    point = found.chosen(cell)
    if point is not None:
        return [one for _, one in sorted(found.of(cell, point).items())]
    return [one for tried in cell.points for one in found.of(cell, tried).values()]


def _target(column: Column, reference: Sequence[Figures]) -> float | None:
    """The accuracy to come to; that of the reference is the mean over its seeds."""
    if column.target != "reference":
        return column.target
    final = [one.value for one in reference if one.value is not None]
    return statistics.fmean(final) if final else None


def _entry(
    found: Found,
    cell: Cell,
    runs: Sequence[Figures],
    reference: Sequence[Figures],
    target: float | None,
) -> Entry:
    recipe, row, column = found.plan.recipe, cell.row, cell.column.name
    done = [one for one in runs if one.value is not None]
    usual = [one for one in reference if one.value is not None]
    itself = row.name == recipe.reference
    ratios = _ratios(done, usual)
    values = ratios if recipe.measure == "time" else tuple(map(_value, done))
    rounds = tuple(_rounds(cell.column, one, target, itself) for one in done)
    own = cell.column.target == "reference"
    shared = [one for one in usual if one.seed in {run.seed for run in done}] or usual
    theirs = [_rounds(cell.column, one, target, itself=own) for one in shared]
    point = found.chosen(cell)
    return Entry(
        row.name,
        column,
        seeds=len(done),
        values=values,
        mean=statistics.fmean(values) if values else None,
        deviation=deviation(values),
        paper=_printed(recipe, row, column),
        paper_spread=recipe.fraction(row.spread[column]) if column in row.spread else None,
        rounds=rounds if target is not None else (),
        length=max((one.rounds for one in done), default=0),
        paper_rounds=str(row.rounds.get(column, "")),
        speedup=_speedup(theirs, rounds) if target is not None else None,
        seconds=tuple(one.seconds for one in done),
        ratios=ratios,
        numbers=tuple(one.seed for one in done),
        chosen=point.name if point else "",
        grid=_grid(found, cell),
        failures=_failures(found, cell),
        folders=tuple(one.folder for one in runs),
        curve=_mean_curve(done),
    )


def _value(figures: Figures) -> float:
    assert figures.value is not None  # only finished runs are asked
    return figures.value


def _rounds(column: Column, one: Figures, target: float | None, itself: bool) -> int | None:
    """Rounds to the target; the reference comes to its own accuracy at its end."""
    if target is None:
        return None
    return one.rounds if itself and column.target == "reference" else one.reached(target)


def _speedup(reference: Sequence[int | None], rounds: Sequence[int | None]) -> float | None:
    """Rounds of the reference divided by rounds; None where one of the runs never came there."""
    ours = [one for one in rounds if one is not None]
    theirs = [one for one in reference if one is not None]
    if not ours or not theirs or len(ours) < len(rounds) or len(theirs) < len(reference):
        return None
    return statistics.fmean(theirs) / statistics.fmean(ours)


def _ratios(runs: Sequence[Figures], reference: Sequence[Figures]) -> tuple[float, ...]:
    """Seconds a round over the reference's of the same seed, else over its mean."""
    theirs = {one.seed: one.seconds for one in reference if one.seconds}
    if not theirs:
        return ()
    usual = statistics.fmean(theirs.values())
    return tuple(one.seconds / theirs.get(one.seed, usual) for one in runs)


def _printed(recipe: Recipe, row: Row, column: str) -> float | None:
    """The paper's number: an accuracy as a fraction, or a ratio of times."""
    if recipe.measure == "time":
        own, other = row.seconds.get(column), recipe.row(recipe.reference).seconds.get(column)
        return own / other if own and other else None
    return recipe.fraction(row.value[column]) if column in row.value else None


def _grid(found: Found, cell: Cell) -> tuple[Tried, ...]:
    if len(cell.points) == 1:
        return ()
    chosen = found.chosen(cell)
    tried = []
    for point in cell.points:
        first = found.of(cell, point).get(0)
        value, by = (first.value, first.chosen_by) if first else (None, None)
        tried.append(Tried(point.name, value, by, point is chosen))
    return tuple(tried)


def _failures(found: Found, cell: Cell) -> tuple[str, ...]:
    return tuple(
        f"{point.name + ', ' if point.name else ''}seed {number}: {one.failure}"
        for point in cell.points
        for number, one in found.of(cell, point).items()
        if one.failure
    )


def _mean_curve(runs: Sequence[Figures]) -> Curve:
    """The mean over seeds, in the rounds that all of them measured."""
    if not runs:
        return ()
    curves = [dict(one.curve) for one in runs]
    return tuple(
        (round, statistics.fmean(curve[round] for curve in curves))
        for round in curves[0]
        if all(round in curve for curve in curves)
    )


def _judge(plan: Plan, column: Column, entries: dict[tuple[str, str], Entry]) -> None:
    """Put the verdicts of a column into its entries."""
    reference = entries.get((plan.recipe.reference, column.name))
    for (row, name), entry in entries.items():
        if name == column.name:
            said = verdict(plan.recipe, plan.scale, entry, reference)
            entries[row, name] = replace(entry, verdict=said)
