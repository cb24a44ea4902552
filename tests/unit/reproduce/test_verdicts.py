"""Verdicts, spreads, rounds to a target, speedups, ratios of time."""

import dataclasses
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from made_recipe import Values, concluded, paper_plan, recipe, tables

from coterie.engine.record import RoundEvent
from coterie.reproduce import figures
from coterie.reproduce.entries import Entry
from coterie.reproduce.outcome import conclude
from coterie.reproduce.plan import make
from coterie.reproduce.recipe import parse
from coterie.reproduce.run import Found, wanted
from coterie.reproduce.verdict import deviation, spread, verdict


def test_the_spread_of_a_difference() -> None:
    assert spread([1.0, 3.0], [5.0, 5.0]) == pytest.approx(math.sqrt(2.0))
    # one value alone takes the deviation of the reference, else of the other
    assert spread([1.0], [5.0], [1.0, 3.0]) == pytest.approx(2.0)
    assert spread([1.0], [1.0, 3.0]) == pytest.approx(2.0)
    assert spread([1.0], [5.0], [2.0]) is None


@pytest.mark.parametrize(
    ("scale", "ours", "reference", "expected"),
    [
        ("paper", [0.655], [0.60], "within (one seed)"),
        ("paper", [0.635], [0.60], "within (one seed)"),  # the paper's own spread is 0.02
        ("paper", [0.70], [0.60], "direction (one seed)"),
        ("paper", [0.50], [0.60], "not reproduced (one seed)"),
        ("laptop", [0.65], [0.60], "direction (one seed)"),
        ("laptop", [0.55], [0.60], "not reproduced (one seed)"),
        ("laptop", [0.64, 0.66], [0.59, 0.61], "direction"),
        ("laptop", [0.60, 0.70], [0.65, 0.55], "not reproduced"),  # inside the spread
        ("laptop", [0.60, 0.70], [0.55, 0.65], "direction"),  # on every seed by as much
        ("laptop", [0.65], [0.55, 0.65], "not reproduced"),  # the reference's spread counts
        ("laptop", [0.85], [0.55, 0.65], "direction"),
    ],
)
def test_a_verdict(scale: str, ours: list[float], reference: list[float], expected: str) -> None:
    row = entry("FedProx", ours, paper=0.65, paper_spread=0.02)
    assert verdict(recipe(), scale, row, entry("FedAvg", reference, paper=0.60)) == expected


def entry(row: str, values: list[float], **more: Any) -> Entry:
    deviation = stdev(values) if len(values) > 1 else None
    mean = fmean(values) if values else None
    told = {"values": tuple(values), "mean": mean, "deviation": deviation, **more}
    return Entry(row, "one", seeds=len(values), **told)


def test_the_reference_is_judged_at_the_scale_of_the_paper_only() -> None:
    own = entry("FedAvg", [0.605], paper=0.60)
    assert verdict(recipe(), "paper", own, own) == "within (one seed)"
    far = entry("FedAvg", [0.5], paper=0.60)
    assert verdict(recipe(), "paper", far, far) == "not reproduced (one seed)"
    assert verdict(recipe(), "laptop", own, own) == "-"


def test_no_verdict_without_a_number_of_the_paper_or_of_ours() -> None:
    reference = entry("FedAvg", [0.6], paper=0.6)
    assert verdict(recipe(), "paper", entry("FedProx", [0.6]), reference) == "-"
    assert verdict(recipe(), "paper", entry("FedProx", [], paper=0.6), reference) == "-"
    broken = entry("FedProx", [], paper=0.6, failures=("seed 0: diverged",))
    assert verdict(recipe(), "paper", broken, reference) == "failed"
    assert verdict(recipe(), "laptop", entry("FedProx", [0.6], paper=0.6), None) == "-"


def test_equal_in_the_paper_is_equal_within_our_spread() -> None:
    reference = entry("FedAvg", [0.60, 0.62], paper=0.65)
    near, far = entry("FedProx", [0.62], paper=0.65), entry("FedProx", [0.7], paper=0.65)
    assert verdict(recipe(), "laptop", near, reference) == "direction"
    assert verdict(recipe(), "laptop", far, reference) == "not reproduced"


VALUES: Values = {
    ("FedAvg", "one"): [0.60, 0.64],
    ("FedProx", "one"): [0.80, 0.80],
    ("FedAvg", "two"): [0.30, 0.30],
    ("FedProx", "two"): [0.70, 0.20],
}


def with_target(target: Any) -> Any:
    some = tables()
    some["scale"]["paper"]["target"] = target
    return make(parse(some), "paper")


def test_rounds_to_a_target_and_speedup() -> None:
    outcome = concluded(with_target(0.4), VALUES)
    # the curves rise evenly in ten rounds to 0.60 and 0.64, and to 0.80
    assert outcome.entry("FedAvg", "one").rounds == (7, 7)
    assert outcome.entry("FedProx", "one").rounds == (5, 5)
    assert outcome.entry("FedProx", "one").speedup == pytest.approx(7 / 5)
    never = outcome.entry("FedAvg", "two")
    assert never.rounds == (None, None) and never.counted_rounds == (11, 11)
    assert never.speedup is None
    assert outcome.entry("FedProx", "two").rounds == (6, None)
    assert outcome.entry("FedProx", "two").speedup is None


def test_the_reference_comes_to_its_own_accuracy_at_its_end() -> None:
    outcome = concluded(with_target("reference"), VALUES)
    assert outcome.targets["one"] == pytest.approx(0.62)
    assert outcome.entry("FedAvg", "one").rounds == (10, 10)
    assert outcome.entry("FedProx", "one").rounds == (8, 8)
    assert outcome.entry("FedProx", "one").speedup == pytest.approx(10 / 8)


def test_ratios_of_time_are_taken_seed_by_seed() -> None:
    some = tables(measure="time")
    some["row"][0]["seconds"] = {"one": 100}
    some["row"][1]["seconds"] = {"one": 120}
    plan = make(parse(some), "paper")
    seconds = {("FedAvg", 0): 1.0, ("FedAvg", 1): 2.0, ("FedProx", 0): 1.2, ("FedProx", 1): 2.6}
    collected = Found(plan)
    for trial in wanted(plan, Path("out"), collected):
        spent = seconds[trial.cell.row.name, trial.number]
        collected.add(trial, figures.Figures(trial.number, "", value=0.5, rounds=10, seconds=spent))
    outcome = conclude(collected)
    row = outcome.entry("FedProx", "one")
    assert row.ratios == pytest.approx((1.2, 1.3))
    assert row.mean == pytest.approx(1.25) and row.paper == pytest.approx(1.2)
    assert row.verdict == "within"
    assert outcome.entry("FedAvg", "one").verdict == "-"
    assert verdict(plan.recipe, "laptop", row, outcome.entry("FedAvg", "one")) == "direction"


def test_the_best_point_of_a_grid_stands_for_its_row() -> None:
    some = tables()
    some["row"][1]["grid"] = {"method.mu": [0.1, 1.0, 10.0]}
    plan = make(parse(some), "smoke")
    collected = Found(plan)
    told = {"method.mu = 0.1": (0.9, 0.3), "method.mu = 1": (0.7, 0.6), "method.mu = 10": (0.8, 0)}
    for trial in wanted(plan, Path("out"), collected):
        value, by = told.get(trial.point.name, (0.5, 0.5))
        failure = "diverged" if trial.point.name.endswith("10") else ""
        collected.add(
            trial,
            figures.Figures(
                0, "", value=None if failure else value, chosen_by=by or None, failure=failure
            ),
        )
    row = conclude(collected).entry("FedProx", "one")
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


def test_only_training_rounds_count() -> None:
    history = [
        event(0, "extract", accuracy=0.1),
        event(1, "train", train_loss=1.0, accuracy=0.2),
        event(2, "train", accuracy=0.2),  # skipped: nobody trained
        event(3, "train", train_loss=0.5, accuracy=0.4, holdout_accuracy=0.3),
    ]
    found = figures.read(history, 0, "", "accuracy", "holdout_accuracy", None)
    assert found.curve == ((1, 0.2), (2, 0.2), (3, 0.4))
    assert (found.value, found.chosen_by, found.rounds, found.seconds) == (0.4, 0.3, 3, 2.0)
    assert found.reached(0.3) == 3 and found.reached(0.5) is None
    early = figures.read(history, 0, "", "accuracy", "accuracy", at=2)
    assert early.value == 0.2 and early.rounds == 2


def test_a_run_that_lacks_the_metric_or_the_rounds_has_failed() -> None:
    history = [event(0, "train", train_loss=1.0, accuracy=0.2)]
    short = figures.read(history, 0, "", "accuracy", "accuracy", at=5)
    assert short.value is None and short.failure == "the run has 1 training rounds, not 5"
    other = figures.read(history, 0, "", "f1", "f1", None)
    assert other.value is None and other.failure == "the run has no metric 'f1'"


def test_what_is_not_run_yet_is_left_open() -> None:
    outcome = concluded(paper_plan(), {("FedAvg", "one"): [0.6]})
    assert (outcome.finished, outcome.total) == (1, 8)
    assert outcome.entry("FedProx", "one").mean is None
    assert outcome.entry("FedProx", "one").verdict == "-"


def printed(row: str, values: tuple[float, ...], paper: float) -> Entry:
    """An entry with these values, and what the paper prints."""
    mean = fmean(values)
    return Entry(row, "one", len(values), values, mean, deviation(values), paper)


def test_one_point_is_within_whatever_the_last_bits() -> None:
    usual = printed("FedAvg", (0.60, 0.60), 0.60)
    for ours, theirs in ((0.71, 0.70), (0.70, 0.69), (0.31, 0.30)):
        assert (
            verdict(recipe(), "paper", printed("FedProx", (ours, ours), theirs), usual) == "within"
        )


def test_a_noisy_ratio_of_times_is_no_direction() -> None:
    timed = dataclasses.replace(recipe(), measure="time")
    usual = printed("FedAvg", (1.0, 1.0), 1.0)
    noisy, clear = printed("FedProx", (0.7, 1.5), 1.04), printed("FedProx", (1.05, 1.07), 1.4)
    assert verdict(timed, "laptop", noisy, usual) == "not reproduced"
    assert verdict(timed, "laptop", clear, usual) == "direction"
    assert verdict(timed, "paper", printed("FedProx", (0.5, 2.9), 1.1), usual) == "not reproduced"
    assert (
        verdict(timed, "laptop", printed("FedProx", (1.2,), 1.4), usual) == "direction (one seed)"
    )
