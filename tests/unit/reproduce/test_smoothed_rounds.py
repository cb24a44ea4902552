"""Rounds to a target by means of several rounds: a single spike decides nothing there."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_recipe import add, tables

from coterie.report.line_chart import Curve
from coterie.reproduce.plan import make_study
from coterie.reproduce.recipe import parse
from coterie.reproduce.runs import list_trials
from coterie.reproduce.scores import Outcome, Scores, find_round
from coterie.reproduce.tables import find_claims, to_json, to_markdown
from coterie.reproduce.verdicts import conclude


def curve(*values: float) -> Curve:
    return tuple(enumerate(values, start=1))


SPIKE = curve(*[0.1] * 3, 0.9, *[0.1] * 6, *[0.6] * 10)  # 0.9 in round 4, 0.6 from round 11 on
STEADY = curve(*[0.1] * 5, *[0.6] * 15)  # from round 6 on


@pytest.mark.parametrize(
    ("points", "window", "expected"),
    [
        (SPIKE, 1, 4),
        (SPIKE, 5, 15),  # (0.9 + 4 * 0.1) / 5 is below: five rounds of 0.6 have to be there
        (SPIKE, 10, 20),
        (STEADY, 1, 6),
        (STEADY, 5, 10),
        (STEADY, 10, 15),
        (STEADY[:9], 5, None),
        (curve(*[0.9] * 10), 5, 5),  # there is no mean before
        (((5, 0.1), (10, 0.6), (15, 0.6)), 5, 10),  # measured in every fifth round
        (((5, 0.1), (10, 0.6), (15, 0.6)), 10, 15),
        ((), 5, None),
    ],
)
def test_the_mean_of_the_last_rounds_is_held_against_the_target(
    points: Curve, window: int, expected: int | None
) -> None:
    assert find_round(points, 0.6, window) == expected


def spiked(below: Curve = STEADY, length: int = 20, target: Any = 0.6) -> Outcome:
    """FedProx has a spike; the claim is that it is sooner at 0.6 than FedAvg."""
    claim = {"text": "sooner", "kind": "faster", "above": "FedProx", "below": "FedAvg"}
    some: dict[str, Any] = tables(claim=[{**claim, "columns": ["one"]}])
    some["scale"]["paper"]["target"] = target
    scores = Scores(make_study(parse(some), "paper", seeds=1))
    for trial in list_trials(scores, Path("out")):
        points = (SPIKE if trial.row == "FedProx" else below)[:length]
        add(scores, trial, points[-1][1], curve=points, rounds=length, seconds=1.0)
    return conclude(scores)


def test_cells_have_rounds_and_speedups_by_every_mean() -> None:
    cell = spiked().cell("FedProx", "one")
    assert cell.rounds == (4,) and cell.smoothed == {5: (15,), 10: (20,)}
    assert cell.speedup == pytest.approx(6 / 4)
    assert cell.smoothed_speedup == pytest.approx({5: 10 / 15, 10: 15 / 20})


def test_a_claim_has_a_verdict_by_every_mean_and_says_where_they_differ() -> None:
    (found,) = find_claims(spiked())
    assert found.verdict == "holds (one seed); over 5 and 10 rounds: does not hold"
    failed = "does not hold (one seed)"
    assert found.by_window == {1: "holds (one seed)", 5: failed, 10: failed}
    assert (
        found.numbers == "one: 4 against 6 rounds (over 5: 15 against 10, over 10: 20 against 15)"
    )


def test_verdicts_that_agree_are_one() -> None:
    (found,) = find_claims(spiked(below=curve(*[0.1] * 20)))
    assert found.verdict == "holds (one seed)"
    assert found.by_window == dict.fromkeys((1, 5, 10), "holds (one seed)")


def test_a_mean_of_more_rounds_than_there_are_is_left_out() -> None:
    outcome = spiked(length=8)
    assert outcome.cell("FedProx", "one").smoothed == {5: (None,)}
    (found,) = find_claims(outcome)
    assert found.by_window == {1: "holds (one seed)", 5: "not tested here"}
    assert found.verdict == "holds (one seed)"


def test_the_reference_ends_at_its_own_mean() -> None:
    outcome = spiked(below=curve(*[0.1] * 15, *[0.6] * 5), target="reference")
    assert outcome.targets["one"] == 0.6
    assert outcome.cell("FedAvg", "one").smoothed == {5: (20,), 10: (20,)}
    # 0.6 over the last five rounds, 0.35 over the last ten: five of ten rounds at 0.6
    assert outcome.cell("FedProx", "one").smoothed == {5: (15,), 10: (15,)}


def test_tables_show_every_mean() -> None:
    outcome = spiked()
    page = to_markdown(outcome)
    assert "| rounds to 60.0 | by mean of 5 | by mean of 10 | paper's rounds | speedup |" in page
    assert "| 4 | 15 | 20 | 27 | 1.50 | 0.67, 0.75 |" in page
    (row,) = [
        r for r in json.loads(to_json(outcome))["columns"][0]["rows"] if r["row"] == "FedProx"
    ]
    assert row["smoothed"] == {"5": [15], "10": [20]}
