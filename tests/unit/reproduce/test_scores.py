"""Scores of runs, of cells over seeds, of grids; rounds to a target, speedups, ratios of time."""

import math
from pathlib import Path
from typing import Any

import pytest
from made_recipe import Values, add, concluded, paper_study, tables

from coterie.engine.record import RoundEvent
from coterie.report.spread import gap
from coterie.reproduce.plan import Cell, make_study
from coterie.reproduce.recipe import Column, Row, parse
from coterie.reproduce.runs import list_trials
from coterie.reproduce.scores import Scores, find_round, score_run
from coterie.reproduce.verdicts import conclude, judge


def test_the_spread_of_a_difference() -> None:
    # on common seeds it is that of the differences
    assert gap({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.5, 2: 0.9}) == pytest.approx((0.15, 0.05 * 2**0.5))
    # a single one has none, even where one of the rows has other seeds
    assert gap({0: 0.5}, {0: 0.4, 1: 0.6, 2: 0.8}) == (pytest.approx(0.1), None)
    # without a common seed both deviations count, if both are known
    assert gap({0: 1.0, 1: 3.0}, {2: 5.0, 3: 5.0}) == pytest.approx((-3.0, math.sqrt(2.0)))
    assert gap({0: 1.0}, {2: 4.0, 3: 6.0}) == (-4.0, None)


VALUES: Values = {
    ("FedAvg", "one"): [0.60, 0.64],
    ("FedProx", "one"): [0.80, 0.80],
    ("FedAvg", "two"): [0.30, 0.30],
    ("FedProx", "two"): [0.70, 0.20],
}


def with_target(target: Any) -> Any:
    some = tables()
    some["scale"]["paper"]["target"] = target
    return make_study(parse(some), "paper")


def test_rounds_to_a_target_and_speedup() -> None:
    outcome = concluded(with_target(0.4), VALUES)
    # the curves rise evenly in ten rounds to 0.60 and 0.64, and to 0.80
    assert outcome.cell("FedAvg", "one").rounds == (7, 7)
    assert outcome.cell("FedProx", "one").rounds == (5, 5)
    assert outcome.cell("FedProx", "one").speedup == pytest.approx(7 / 5)
    never = outcome.cell("FedAvg", "two")
    assert never.rounds == (None, None) and never.length == 10
    assert never.speedup is None
    assert outcome.cell("FedProx", "two").rounds == (6, None)
    assert outcome.cell("FedProx", "two").speedup is None


def test_the_reference_comes_to_its_own_accuracy_at_its_end() -> None:
    outcome = concluded(with_target("reference"), VALUES)
    assert outcome.targets["one"] == pytest.approx(0.62)  # the mean is shown
    assert outcome.cell("FedAvg", "one").rounds == (10, 10)
    assert outcome.cell("FedProx", "one").speedup == pytest.approx(10 / 8)


APART: Values = {("FedAvg", "one"): [0.30, 0.70], ("FedProx", "one"): [0.80, 0.80]}


def test_a_run_is_held_against_the_end_of_the_reference_on_the_same_seed() -> None:
    row = concluded(with_target("reference"), APART).cell("FedProx", "one")
    # 0.08 a round: to 0.30 and to 0.70, not to their mean
    assert row.rounds == (4, 9)
    assert row.speedup == pytest.approx(10 / 6.5)
    # by the mean of five rounds FedAvg ends at 0.24 and 0.56, by that of ten at half its value
    assert row.smoothed == {5: (5, 9), 10: (10, 10)}


def test_rounds_on_a_seed_stay_when_the_reference_gets_another_seed() -> None:
    alone = {key: values[:1] for key, values in APART.items()}
    first, second = (
        concluded(with_target("reference"), {**alone, ("FedAvg", "one"): reference})
        for reference in ([0.30], [0.30, 0.70])
    )
    assert first.cell("FedProx", "one") == second.cell("FedProx", "one")
    assert second.targets["one"] == pytest.approx(0.50)


def test_a_seed_that_the_reference_lacks_goes_by_the_mean_of_its_ends() -> None:
    values = {**APART, ("FedProx", "one"): [0.80, 0.80, 0.80]}
    some = tables()
    some["scale"]["paper"] |= {"target": "reference", "seeds": 3}
    row = concluded(make_study(parse(some), "paper"), values).cell("FedProx", "one")
    assert row.rounds == (4, 9, 7)  # the last one to 0.50


def test_ratios_of_time_are_taken_seed_by_seed() -> None:
    some = tables(measure="time")
    some["row"][0]["seconds"] = {"one": 100}
    some["row"][1]["seconds"] = {"one": 120}
    study = make_study(parse(some), "paper")
    seconds = {("FedAvg", 0): 1.0, ("FedAvg", 1): 2.0, ("FedProx", 0): 1.2, ("FedProx", 1): 2.6}
    scores = Scores(study)
    for trial in list_trials(scores, Path("out")):
        add(scores, trial, 0.5, rounds=10, seconds=seconds[trial.row, trial.seed])
    outcome = conclude(scores)
    row = outcome.cell("FedProx", "one")
    assert row.ratios == pytest.approx((1.2, 1.3))
    assert row.mean == pytest.approx(1.25) and row.paper == pytest.approx(1.2)
    assert row.verdict == "within"
    assert outcome.cell("FedAvg", "one").verdict == "-"
    assert judge(study.recipe, "laptop", row, outcome.cell("FedAvg", "one")) == "direction"


def test_the_best_point_of_a_grid_stands_for_its_row() -> None:
    some = tables()
    some["row"][1]["grid"] = {"method.mu": [0.1, 1.0, 10.0]}
    study = make_study(parse(some), "smoke")
    scores = Scores(study)
    points = {
        "method.mu = 0.1": (0.9, 0.3),
        "method.mu = 1": (0.7, 0.6),
        "method.mu = 10": (0.8, 0),
    }
    for trial in list_trials(scores, Path("out")):
        value, by = points.get(trial.point, (0.5, 0.5))
        failure = "diverged" if trial.point.endswith("10") else ""
        add(scores, trial, None if failure else value, chosen_by=by or None, failure=failure)
    row = conclude(scores).cell("FedProx", "one")
    assert row.mean == 0.7 and row.chosen == "method.mu = 1"
    assert [(tried.value, tried.chosen) for tried in row.grid] == [
        (0.9, False),
        (0.7, True),
        (None, False),
    ]
    assert row.failures == ("method.mu = 10, seed 0: diverged",)


def event(round: int, stage: str, **metrics: float) -> RoundEvent:
    nothing: dict[str, str] = {}
    told = {"metrics": metrics, "bytes_up": 0, "bytes_down": 0, "evaluation_bytes_up": 0}
    more = {"evaluation_bytes_down": 0, "seconds": float(round), "digest": "", "states": ""}
    return RoundEvent(round, stage, [0], nothing, nothing, False, **told, **more)  # type: ignore[arg-type]


def read_cell(metric: str = "accuracy", by: str = "accuracy", at: int | None = None) -> Cell:
    """A cell in which a metric is read after some rounds."""
    return Cell(Row("FedAvg", "fedavg"), Column("one", at=at), (), 1, metric, by)


def test_only_training_rounds_count() -> None:
    history = [
        event(0, "extract", accuracy=0.1),
        event(1, "train", train_loss=1.0, accuracy=0.2),
        event(2, "train", accuracy=0.2),  # skipped: nobody trained
        event(3, "train", train_loss=0.5, accuracy=0.4, holdout_accuracy=0.3),
    ]
    score = score_run(history, read_cell(by="holdout_accuracy"), 0, "")
    assert score.curve == ((1, 0.2), (2, 0.2), (3, 0.4))
    assert (score.value, score.chosen_by, score.rounds, score.seconds) == (0.4, 0.3, 3, 2.0)
    assert find_round(score.curve, 0.3) == 3 and find_round(score.curve, 0.5) is None
    early = score_run(history, read_cell(at=2), 0, "")
    assert early.value == 0.2 and early.rounds == 2


def test_a_run_that_lacks_the_metric_or_the_rounds_has_failed() -> None:
    history = [event(0, "train", train_loss=1.0, accuracy=0.2)]
    short = score_run(history, read_cell(at=5), 0, "")
    assert short.value is None and short.failure == "the run has 1 training rounds, not 5"
    other = score_run(history, read_cell("f1"), 0, "")
    assert other.value is None and other.failure == "the run has no metric 'f1'"


def test_what_is_not_run_yet_is_left_open() -> None:
    outcome = concluded(paper_study(), {("FedAvg", "one"): [0.6]})
    assert (outcome.finished, outcome.total) == (1, 8)
    assert outcome.cell("FedProx", "one").mean is None
    assert outcome.cell("FedProx", "one").verdict == "-"
