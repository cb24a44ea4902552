"""The whole loop against a model: stages, cohorts, drop-outs, bad clients, kills and resumes."""

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import Run, check, draw, predict

from coterie.core.settings import Cohort


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False))
def test_a_run_is_what_the_model_says(tmp_path: Path, generator: random.Random) -> None:
    folder = tmp_path / "run"
    try:
        assert check(draw(generator), folder) == ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("committed", [True, False], ids=["interrupted", "killed"])
def test_a_run_that_is_stopped_in_every_round_is_what_the_model_says(
    committed: bool, tmp_path: Path
) -> None:
    kills = tuple((round, committed) for round in range(5))
    run = Run(("3:all:1", "2:none:1"), {0: 3, 1: 5}, Cohort(), 2, {(1, 0): "nan"}, kills)
    assert check(run, tmp_path) == ""
    assert [line.weight for line in predict(run)[0]] == [1.625, 3.625, 5.25, 6.25, 7.25]


def test_a_run_that_gives_up_and_is_resumed_is_what_the_model_says(tmp_path: Path) -> None:
    answers = {(round, 0): "diverged" for round in range(7)}
    run = Run(("8:all:1",), {0: 3}, Cohort(max_skipped=9), 0, answers)
    assert predict(run)[1] == 2
    assert check(run, tmp_path) == ""
