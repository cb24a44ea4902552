"""A small recipe, and outcomes of it that no run was needed for."""

import copy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.reproduce.entries import Outcome
from coterie.reproduce.figures import Figures
from coterie.reproduce.outcome import conclude
from coterie.reproduce.plan import Plan, make
from coterie.reproduce.recipe import Recipe, parse
from coterie.reproduce.run import Found, Trial, wanted

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


def concluded(plan: Plan, values: Values) -> Outcome:
    """What is concluded from these values; a run without one is not finished yet."""
    return conclude(found(plan, values))


def found(plan: Plan, values: Values) -> Found:
    """What runs with these values say."""
    collected = Found(plan)
    for trial in wanted(plan, Path("out"), collected):
        given = values.get((trial.cell.row.name, trial.cell.column.name), ())
        if trial.number < len(given):
            collected.add(trial, figures_of(trial, given[trial.number]))
    return collected


def figures_of(trial: Trial, value: float, **more: Any) -> Figures:
    """Figures whose curve rises evenly to the value in ten rounds."""
    curve = tuple((round, value * round / 10) for round in range(1, 11))
    told = {"value": value, "chosen_by": value, "curve": curve, "rounds": 10, "seconds": 1.0}
    return Figures(trial.number, "somewhere", **{**told, **more})


def paper_plan(**changes: Any) -> Plan:
    return make(recipe(**changes), "paper")
