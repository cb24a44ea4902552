"""A small recipe, and outcomes of it that no run was needed for."""

import copy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.reproduce.plan import Study, make_study
from coterie.reproduce.recipe import Recipe, parse
from coterie.reproduce.runs import Trial, list_trials
from coterie.reproduce.scores import Outcome, Score, Scores
from coterie.reproduce.verdicts import conclude

TEXT = """
paper = "Somebody, Table 1"
about = "A table."
unit = "percent"
reference = "FedAvg"
base = "digits/fedavg"

[scale.paper]
seeds = 2
[scale.smoke]
seeds = 1
set = { "run.rounds" = 3, "local.epochs" = 1 }

[[column]]
name = "one"
[[column]]
name = "two"
set = { "partition.beta" = 5.0 }

[[row]]
name = "FedAvg"
config = "fedavg"
value = { "one" = 60.0, "two" = 70.0 }

[[row]]
name = "FedProx"
config = "fedprox"
value = { "one" = 65.0, "two" = 71.0 }
spread = { "one" = 2.0 }
rounds = { "one" = 27, "two" = ">100" }
"""

Values = Mapping[tuple[str, str], Sequence[float]]  # (row, column) -> value by seed


def tables(**changes: Any) -> dict[str, Any]:
    """The tables of the recipe, with other values above them."""
    return {**copy.deepcopy(tomllib.loads(TEXT)), **changes}


def recipe(**changes: Any) -> Recipe:
    return parse(tables(**changes))


def concluded(study: Study, values: Values) -> Outcome:
    """The outcome of these values; a run without one is not finished yet."""
    return conclude(scored(study, values))


def scored(study: Study, values: Values) -> Scores:
    """The scores of runs with these values, whose curves rise evenly to them in ten rounds."""
    scores = Scores(study)
    for trial in list_trials(scores, Path("out")):
        given = values.get((trial.row, trial.column), ())
        if trial.seed < len(given):
            value = given[trial.seed]
            curve = tuple((round, value * round / 10) for round in range(1, 11))
            add(scores, trial, value, curve=curve, rounds=10, seconds=1.0)
    return scores


def add(scores: Scores, trial: Trial, value: float | None, **more: Any) -> None:
    """Score a trial by hand; a point is chosen by its value unless another is given."""
    fields = {"value": value, "chosen_by": value, **more}
    scores.add(trial.row, trial.column, trial.point, Score(trial.seed, "somewhere", **fields))


def paper_study(**changes: Any) -> Study:
    return make_study(recipe(**changes), "paper")
