"""Verdicts: scores beside the numbers of the paper."""

import dataclasses
from statistics import fmean, stdev
from typing import Any

import pytest
from made_recipe import recipe

from coterie.report.spread import deviation
from coterie.reproduce.scores import CellScore
from coterie.reproduce.verdicts import judge


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
        ("laptop", [0.65], [0.55, 0.65], "direction (one seed)"),  # one seed in common
        ("laptop", [0.50], [0.55, 0.65], "not reproduced (one seed)"),
    ],
)
def test_a_verdict(scale: str, ours: list[float], reference: list[float], expected: str) -> None:
    row = cell("FedProx", ours, paper=0.65, paper_spread=0.02)
    assert judge(recipe(), scale, row, cell("FedAvg", reference, paper=0.60)) == expected


def cell(row: str, values: list[float], **more: Any) -> CellScore:
    deviation = stdev(values) if len(values) > 1 else None
    mean = fmean(values) if values else None
    told = {"values": tuple(values), "mean": mean, "deviation": deviation, **more}
    return CellScore(row, "one", seeds=len(values), **told)


def test_the_reference_is_judged_at_the_scale_of_the_paper_only() -> None:
    own = cell("FedAvg", [0.605], paper=0.60)
    assert judge(recipe(), "paper", own, own) == "within (one seed)"
    far = cell("FedAvg", [0.5], paper=0.60)
    assert judge(recipe(), "paper", far, far) == "not reproduced (one seed)"
    assert judge(recipe(), "laptop", own, own) == "-"


def test_no_verdict_without_a_number_of_the_paper_or_of_ours() -> None:
    reference = cell("FedAvg", [0.6], paper=0.6)
    assert judge(recipe(), "paper", cell("FedProx", [0.6]), reference) == "-"
    assert judge(recipe(), "paper", cell("FedProx", [], paper=0.6), reference) == "-"
    broken = cell("FedProx", [], paper=0.6, failures=("seed 0: diverged",))
    assert judge(recipe(), "paper", broken, reference) == "failed"
    assert judge(recipe(), "laptop", cell("FedProx", [0.6], paper=0.6), cell("FedAvg", [])) == "-"


def test_equal_in_the_paper_is_equal_within_our_spread() -> None:
    reference = cell("FedAvg", [0.60, 0.62], paper=0.65)
    near = cell("FedProx", [0.62, 0.61], paper=0.65)
    far = cell("FedProx", [0.70, 0.71], paper=0.65)
    assert judge(recipe(), "laptop", near, reference) == "direction"
    assert judge(recipe(), "laptop", far, reference) == "not reproduced"


@pytest.mark.parametrize("scale", ["paper", "laptop"])
@pytest.mark.parametrize("ours", [[0.70], [0.601], [0.60]])
def test_a_single_difference_cannot_refute_a_tie(scale: str, ours: list[float]) -> None:
    reference = cell("FedAvg", [0.60, 0.62], paper=0.65)
    assert judge(recipe(), scale, cell("FedProx", ours, paper=0.65), reference) == "-"


def test_a_tie_on_one_seed_may_be_within_or_itself_the_reference() -> None:
    reference = cell("FedAvg", [0.60], paper=0.65)
    near = cell("FedProx", [0.655], paper=0.65)
    assert judge(recipe(), "paper", near, reference) == "within (one seed)"
    assert judge(recipe(), "paper", reference, reference) == "not reproduced (one seed)"


def test_within_is_marked_by_the_seeds_of_the_row_alone() -> None:
    row, alone = cell("FedProx", [0.64, 0.66], paper=0.65), cell("FedProx", [0.65], paper=0.65)
    one, two = cell("FedAvg", [0.60], paper=0.60), cell("FedAvg", [0.60, 0.61], paper=0.60)
    assert judge(recipe(), "paper", row, one) == "within"
    assert judge(recipe(), "paper", alone, two) == "within (one seed)"


def printed(row: str, values: tuple[float, ...], paper: float) -> CellScore:
    """A score with these values, and what the paper prints."""
    mean = fmean(values)
    return CellScore(row, "one", len(values), values, mean, deviation(values), paper)


def test_one_point_is_within_whatever_the_last_bits() -> None:
    usual = printed("FedAvg", (0.60, 0.60), 0.60)
    for ours, theirs in ((0.71, 0.70), (0.70, 0.69), (0.31, 0.30)):
        assert judge(recipe(), "paper", printed("FedProx", (ours, ours), theirs), usual) == "within"


def test_a_noisy_ratio_of_times_is_no_direction() -> None:
    timed = dataclasses.replace(recipe(), measure="time")
    usual = printed("FedAvg", (1.0, 1.0), 1.0)
    noisy, clear = printed("FedProx", (0.7, 1.5), 1.04), printed("FedProx", (1.05, 1.07), 1.4)
    assert judge(timed, "laptop", noisy, usual) == "not reproduced"
    assert judge(timed, "laptop", clear, usual) == "direction"
    assert judge(timed, "paper", printed("FedProx", (0.5, 2.9), 1.1), usual) == "not reproduced"
    assert judge(timed, "laptop", printed("FedProx", (1.2,), 1.4), usual) == "direction (one seed)"
