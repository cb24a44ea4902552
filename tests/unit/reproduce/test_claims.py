"""Claims of a paper, tested on values."""

from dataclasses import replace
from typing import Any

import pytest
from made_recipe import Values, concluded, tables

from coterie.reproduce.plan import make_study
from coterie.reproduce.recipe import parse
from coterie.reproduce.verdicts import Finding, check_claim


def finding(values: Values, **claim: Any) -> Finding:
    """What becomes of one claim; the recipe has a third column and a target."""
    some = tables(claim=[{"text": "so it is", "above": "FedProx", **claim}])
    some["column"].append({"name": "three"})
    some["scale"]["paper"]["target"] = 0.4
    study = make_study(parse(some), "paper")
    return check_claim(study.recipe.claims[0], concluded(study, values), "{:.2f}".format)


def table(**rows: list[list[float]]) -> Values:
    """Values by row: a list of seeds for each of the three columns."""
    columns = ("one", "two", "three")
    return {
        (row, column): seeds
        for row, cells in rows.items()
        for column, seeds in zip(columns, cells, strict=True)
    }


SURE = table(
    FedAvg=[[0.60, 0.61], [0.60, 0.61], [0.60, 0.61]],
    FedProx=[[0.70, 0.71], [0.66, 0.67], [0.63, 0.60]],
)
ALONE = table(FedAvg=[[0.60], [0.60], [0.60]], FedProx=[[0.70], [0.66], [0.62]])


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"below": "FedAvg", "columns": ["one"]}, "holds"),
        ({"below": "FedAvg", "columns": ["one"], "margin": 0.09}, "holds"),
        ({"below": "FedAvg", "columns": ["one"], "margin": 0.11}, "does not hold"),
        ({"below": "FedAvg", "columns": ["three"]}, "does not hold"),  # less than the spread
        ({"below": "FedAvg"}, "does not hold"),  # in all columns
        ({"kind": "closer", "below": "FedAvg", "margin": 0.02, "columns": ["three"]}, "holds"),
        ({"kind": "closer", "below": "FedAvg", "margin": 0.02}, "does not hold"),
        ({"kind": "not-above", "below": "FedAvg", "margin": 0.11}, "holds"),
        ({"kind": "not-above", "below": "FedAvg", "margin": 0.09}, "does not hold"),
        ({"kind": "falls"}, "does not hold"),  # its curves rise
        ({"kind": "faster", "below": "FedAvg", "columns": ["one"]}, "holds"),
        ({"kind": "faster", "below": "FedAvg", "columns": ["three"]}, "does not hold"),
        ({"kind": "gap-shrinks", "below": "FedAvg"}, "holds"),
        ({"kind": "gap-shrinks", "below": "FedAvg", "columns": ["three", "one"]}, "does not hold"),
        ({"kind": "monotone", "direction": "down"}, "holds"),
        ({"kind": "monotone", "direction": "up"}, "does not hold"),
        ({"kind": "monotone", "direction": "up", "margin": 0.06}, "holds"),
        ({"kind": "peak", "at": "one"}, "holds"),
        ({"kind": "peak", "at": "two"}, "does not hold"),
    ],
)
def test_a_claim(claim: dict[str, Any], expected: str) -> None:
    assert finding(SURE, **claim).verdict == expected


def test_the_numbers_stand_with_the_verdict() -> None:
    found = finding(SURE, below="FedAvg", columns=["one"])
    assert found.numbers == "one: 0.70 against 0.60, +0.10 by seed (spread 0.00)"
    fewer = finding(SURE, kind="faster", below="FedAvg", columns=["one"])
    assert (
        fewer.numbers == "one: 6 against 7 rounds (over 5: 8 against 9, over 10: >10 against >10)"
    )


@pytest.mark.parametrize(
    "claim",
    [
        {"below": "FedAvg", "columns": ["one"]},
        {"kind": "faster", "below": "FedAvg", "columns": ["one"]},
        {"kind": "monotone", "direction": "down"},
        {"kind": "peak", "at": "one"},
    ],
)
def test_one_seed_is_said(claim: dict[str, Any]) -> None:
    assert finding(ALONE, **claim).verdict == "holds (one seed)"


def test_a_difference_on_one_seed_has_no_spread_whatever_the_reference_has() -> None:
    mixed = {**SURE, ("FedProx", "one"): [0.70]}
    assert finding(mixed, below="FedAvg", columns=["one"]).verdict == "holds (one seed)"
    close = {**SURE, ("FedProx", "one"): [0.605], ("FedAvg", "one"): [0.60, 0.70]}
    assert finding(close, below="FedAvg", columns=["one"]).verdict == "holds (one seed)"


def test_rounds_beside_a_verdict_are_those_on_the_seeds_that_both_have() -> None:
    mixed = {**SURE, ("FedProx", "one"): [0.70], ("FedAvg", "one"): [0.60, 0.40]}
    found = finding(mixed, kind="faster", below="FedAvg", columns=["one"])
    assert found.verdict.startswith("holds (one seed)")
    assert found.numbers.startswith("one: 6 against 7 rounds")


def test_never_is_more_than_any_number_of_rounds() -> None:
    values = table(FedAvg=[[0.3], [0.3], [0.3]], FedProx=[[0.5], [0.3], [0.3]])
    found = finding(values, kind="faster", below="FedAvg", columns=["one"])
    assert found.verdict == "holds (one seed)"
    both = "over 5: 10 against >10, over 10: >10 against >10"
    assert found.numbers == f"one: 8 against >10 rounds ({both})"
    nobody = finding(values, kind="faster", below="FedAvg", columns=["two"])
    assert nobody.verdict == "not tested here"


def test_the_reference_is_no_measurement_of_its_own_accuracy() -> None:
    values = {**SURE, ("FedProx", "one"): [0.70]}
    some = tables(claim=[{"text": "so", "kind": "faster", "above": "FedProx", "below": "FedAvg"}])
    some["column"] = [{"name": "one", "target": "reference"}]
    for row in some["row"]:
        row["value"] = {}
        row.pop("rounds", None)
        row.pop("spread", None)
    study = make_study(parse(some), "paper")
    found = check_claim(study.recipe.claims[0], concluded(study, values), str)
    assert found.by_window[1] == "holds (one seed)"


def test_what_was_not_run_is_not_tested() -> None:
    partly = {key: value for key, value in SURE.items() if key != ("FedProx", "two")}
    found = finding(partly, below="FedAvg")
    assert found == Finding("so it is", "not tested here", "FedProx in two has no value")
    assert finding(partly, below="FedAvg", columns=["one"]).verdict == "holds"


def test_columns_of_other_scales_are_not_missed_but_left_out_ones_are() -> None:
    some = tables(claim=[{"text": "x", "above": "FedProx", "below": "FedAvg"}])
    some["claim"][0]["columns"] = ["one", "two"]
    some["column"][1]["scales"] = ["smoke"]
    study = make_study(parse(some), "paper")
    values = {("FedAvg", "one"): [0.5], ("FedProx", "one"): [0.6]}
    found = check_claim(study.recipe.claims[0], concluded(study, values), str)
    assert found.verdict == "holds (one seed)"
    del some["column"][1]["scales"]
    some["scale"]["paper"]["columns"] = ["one"]
    study = make_study(parse(some), "paper")
    found = check_claim(study.recipe.claims[0], concluded(study, values), str)
    assert found.verdict == "not tested here" and "two is left out" in found.numbers


def test_a_claim_about_all_columns_says_on_which_it_was_tested() -> None:
    claim = {"text": "in all settings", "above": "FedProx", "below": "FedAvg"}
    some = tables(claim=[claim, {**claim, "columns": ["one"]}, {**claim, "kind": "faster"}])
    some["scale"]["paper"] |= {"target": 0.4, "columns": ["one"]}
    values = {("FedAvg", "one"): [0.60], ("FedProx", "one"): [0.50]}

    def find_verdicts() -> list[str]:
        study = make_study(parse(some), "paper")
        outcome = concluded(study, values)
        return [check_claim(each, outcome, str).verdict for each in study.recipe.claims]

    fails = "does not hold (one seed)"
    only = "; run in one alone"
    assert find_verdicts() == [fails + only, fails, f"{fails}{only}"]
    values["FedProx", "one"] = [0.70]
    holds = "holds (one seed)"
    assert find_verdicts() == [holds + only, holds, holds + only]
    some["column"][1]["scales"] = ["smoke"]  # it is not missed at this scale
    assert find_verdicts() == [holds] * 3


@pytest.mark.parametrize(("margin", "verdict"), [(0.03, "holds"), (0.05, "does not hold")])
def test_a_curve_that_ends_below_its_best_falls(margin: float, verdict: str) -> None:
    claim = {"text": "so", "kind": "falls", "above": "FedProx", "columns": ["one"]}
    study = make_study(parse(tables(claim=[{**claim, "margin": margin}])), "paper")
    outcome = concluded(study, {key: seeds for key, seeds in SURE.items() if key[1] != "three"})
    key = ("FedProx", "one")
    fallen = replace(outcome.cells[key], curve=((5, 0.60), (10, 0.70), (15, 0.66)))
    outcome = replace(outcome, cells={**outcome.cells, key: fallen})
    found = check_claim(study.recipe.claims[0], outcome, "{:.2f}".format)
    assert found.verdict == verdict
    assert found.numbers == "one: 0.66 at the end, 0.70 after round 10"


def test_so_many_times_as_much() -> None:
    values = table(FedAvg=[[0.2, 0.2], [0.1, 0.1], [0.3, 0.3]], FedProx=[[0.6, 0.6]] * 3)
    asked = {"kind": "times", "below": "FedAvg", "margin": 3.0}
    assert finding(values, **asked, columns=["one", "two"]).verdict == "holds"
    found = finding(values, **asked, columns=["three"])
    assert found.verdict == "does not hold"
    assert found.numbers == "three: 0.60 against 0.30, 2 times"
