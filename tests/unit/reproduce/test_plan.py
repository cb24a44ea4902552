"""What is laid over what, and in which order the runs come."""

from pathlib import Path
from typing import Any

import pytest
from made_recipe import add, recipe, tables

from coterie.core.errors import ConfigError
from coterie.reproduce.plan import Study, describe_changes, locate_run, make_study
from coterie.reproduce.recipe import parse
from coterie.reproduce.runs import list_trials
from coterie.reproduce.scores import Scores, summarise


def study(scale: str = "smoke", **row: Any) -> Study:
    """The recipe with other keys for FedProx."""
    some = tables()
    some["row"][1].update(row)
    return make_study(parse(some), scale)


def test_the_scale_is_laid_over_column_and_row_and_what_they_say_of_it_over_that() -> None:
    some = tables()
    some["column"][1]["set"] = {"partition.beta": 5.0, "run.rounds": 50, "local.lr": 0.5}
    some["row"][1]["set"] = {"local.epochs": 7, "local.lr": 0.25}
    some["row"][1]["set_smoke"] = {"local.epochs": 2}
    made = make_study(parse(some), "smoke")
    cell = made.cell("FedProx", "two")
    assert cell is not None
    config = made.config(cell, cell.points[0], 0)
    assert (config.run.rounds, config.local.epochs, config.local.lr) == (3, 2, 0.25)
    assert config.tables["partition"]["beta"] == 5.0
    assert config.tables["method"]["name"] == "fedprox"
    assert made.config(cell, cell.points[0], 2).run.seed == 2


def test_the_folder_of_the_data_is_for_cells_whose_data_are_not_installed() -> None:
    some = tables()
    some["column"][0]["base"] = "fashion-mnist/fedavg"
    made = make_study(parse(some), "paper", root="elsewhere")
    roots = {
        cell.column.name: made.config(cell, cell.points[0], 0).tables["data"]["root"]
        for cell in made.cells
    }
    assert roots == {"one": "elsewhere", "two": ""}


def test_another_setting_at_a_scale_replaces_that_of_the_column() -> None:
    some = tables()
    some["column"][0]["base"] = "fashion-mnist/fedavg"
    assert make_study(parse(some), "smoke").cells[0].points[0].setting == "fashion-mnist/fedavg"
    some["scale"]["smoke"]["base"] = "digits/fedprox"
    assert {cell.points[0].setting for cell in make_study(parse(some), "smoke").cells} == {
        "digits/fedprox"
    }


def test_choosing_on_held_out_samples_sets_them_aside_in_all_cells() -> None:
    some = tables(choose="holdout")
    made = make_study(parse(some), "smoke")
    assert {c.chosen_by for c in made.cells} == {"holdout_accuracy"}
    assert {made.config(c, c.points[0], 0).data.holdout for c in made.cells} == {0.1}
    some["scale"]["smoke"]["choose"] = "test"
    made = make_study(parse(some), "smoke")
    assert {c.chosen_by for c in made.cells} == {"accuracy"}
    assert {made.config(c, c.points[0], 0).data.holdout for c in made.cells} == {0.0}


def test_a_row_afresh_is_as_long_as_the_column_says() -> None:
    some = tables()
    some["column"][0]["at"] = 2
    some["row"][1]["afresh"] = True
    made = make_study(parse(some), "smoke")
    rounds = {c.row.name: made.config(c, c.points[0], 0).run.rounds for c in made.cells[:2]}
    assert rounds == {"FedAvg": 3, "FedProx": 2}


def test_rows_and_columns_can_be_left_to_scales() -> None:
    some = tables()
    some["scale"]["smoke"]["columns"] = ["two"]
    some["row"][1]["scales"] = ["paper"]
    assert [cell.name for cell in make_study(parse(some), "smoke").cells] == ["FedAvg, two"]
    assert len(make_study(parse(some), "paper").cells) == 4


def test_a_column_that_needs_a_gpu_is_left_out_with_a_line() -> None:
    some = tables()
    some["column"][0]["gpu"] = True
    made = make_study(parse(some), "smoke", gpu=False)
    assert [column.name for column in made.columns] == ["two"]
    assert made.left_out == ["one is left out: it needs a GPU"]
    assert len(make_study(parse(some), "smoke", gpu=True).columns) == 2


def test_a_column_may_need_a_gpu_at_one_scale_alone() -> None:
    some = tables()
    some["column"][0]["gpu_paper"] = True
    assert make_study(parse(some), "paper", gpu=False).left_out
    assert not make_study(parse(some), "smoke", gpu=False).left_out
    some["column"][0] |= {"gpu": True, "gpu_smoke": False}
    assert not make_study(parse(some), "smoke", gpu=False).left_out


def test_a_target_is_the_column_s_at_the_scale_then_the_scale_s_then_the_column_s() -> None:
    some = tables()
    some["column"][0] |= {"target": 0.9, "target_smoke": 0.2}
    some["column"][1] |= {"target": 0.8}

    def targets(scale: str) -> list[object]:
        return [column.target for column in make_study(parse(some), scale).columns]

    assert (targets("paper"), targets("smoke")) == ([0.9, 0.8], [0.2, 0.8])
    some["scale"]["smoke"]["target"] = 0.5
    assert targets("smoke") == [0.2, 0.5]


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale = 'papr' is not known; did you mean 'paper'"):
        make_study(recipe(), "papr")


def test_seeds_come_from_the_row_at_the_scale_the_row_the_scale() -> None:
    assert [cell.seeds for cell in study("paper").cells] == [2, 2, 2, 2]
    assert [cell.seeds for cell in study("paper", seeds=3).cells] == [2, 3, 2, 3]
    assert [cell.seeds for cell in study("paper", seeds=3, seeds_paper=1).cells] == [2, 1, 2, 1]
    some = tables()
    some["column"][1]["seeds_paper"] = 1
    assert [cell.seeds for cell in make_study(parse(some), "paper").cells] == [2, 2, 1, 1]
    asked = make_study(parse(some), "paper", seeds=4)
    assert [cell.seeds for cell in asked.cells] == [4, 4, 4, 4]
    assert asked.command == "coterie reproduce custom --scale paper --seeds 4"


def test_runs_come_seed_by_seed_and_the_chosen_point_gets_the_other_seeds() -> None:
    made = study("paper", grid={"method.mu": [0.1, 1.0]}, seeds=3)
    trials, scores = [], Scores(made)
    for trial in list_trials(scores, Path("out")):
        trials.append(trial)
        add(scores, trial, 0.5 if "mu = 1" in trial.point else 0.4)
    assert len(trials) == made.total == 12
    assert [trial.seed for trial in trials] == [0] * 6 + [1] * 4 + [2] * 2
    later = {trial.point for trial in trials if trial.seed and trial.row == "FedProx"}
    assert later == {"method.mu = 1"}


def test_seeds_can_be_counted_from_a_later_one() -> None:
    some = tables()
    some["row"][1]["grid"] = {"method.mu": [0.1, 1.0]}
    made = make_study(parse(some), "smoke", seeds=2, first=3)
    assert "--seeds 2 --first-seed 3" in made.command
    scores, trials = Scores(made), []
    for trial in list_trials(scores, Path("out")):
        trials.append(trial)
        add(scores, trial, 0.5 if "mu = 1" in trial.point else 0.4)
    assert [trial.seed for trial in trials] == [3] * 6 + [4] * 4
    assert {trial.point for trial in trials if trial.seed == 4} == {"", "method.mu = 1"}
    assert {trial.config.run.seed for trial in trials if trial.seed == 3} == {3}
    score = summarise(scores).cell("FedProx", "one")
    assert score.numbers == (3, 4) and score.chosen == "method.mu = 1"
    assert [point.value for point in score.grid] == [0.4, 0.5]


def test_a_grid_can_be_replaced_or_left_out_at_a_scale() -> None:
    grid = {"method.mu": [0.1, 1.0], "local.lr": [0.01, 0.1]}
    assert [len(cell.points) for cell in study(grid=grid).cells] == [1, 4, 1, 4]
    assert [len(cell.points) for cell in study(grid=grid, grid_smoke={}).cells] == [1, 1, 1, 1]


def test_a_column_may_try_the_first_points_of_grids_alone() -> None:
    some = tables()
    some["row"][1]["grid"] = {"method.mu": [1.0, 0.1, 5.0]}
    some["column"][1]["points_smoke"] = 1
    cells = {cell.name: cell for cell in make_study(parse(some), "smoke").cells}
    assert [len(cell.points) for cell in cells.values()] == [1, 3, 1, 1]
    assert [point.name for point in cells["FedProx, two"].points] == ["method.mu = 1"]
    some["column"][1]["points_smoke"] = 9
    assert len(make_study(parse(some), "smoke").cells[3].points) == 3


def test_without_grids_a_column_of_one_point_keeps_it() -> None:
    some = tables()
    some["row"][1]["grid"] = {"method.mu": [1.0, 0.1]}
    some["column"][1]["points_smoke"] = 1
    cells = {cell.name: cell for cell in make_study(parse(some), "smoke", grids=False).cells}
    assert [point.name for point in cells["FedProx, one"].points] == [""]
    assert [point.name for point in cells["FedProx, two"].points] == ["method.mu = 1"]


def test_a_configuration_has_one_folder_whatever_the_recipe() -> None:
    made, other = study(), make_study(recipe(paper="Another"), "smoke")
    first, second = (p.config(p.cells[0], p.cells[0].points[0], 0) for p in (made, other))
    assert locate_run(Path("out"), first) == locate_run(Path("out"), second)
    assert locate_run(Path("out"), first).name.startswith("fedavg-")


def test_a_cell_reads_the_metric_of_its_row_its_column_or_the_recipe() -> None:
    some = tables(metric="knn")
    some["column"][1]["metric"] = "probe"
    some["row"][1]["metric"] = "accuracy"
    made = make_study(parse(some), "smoke")
    metrics = {(cell.row.name, cell.column.name): cell.metric for cell in made.cells}
    assert metrics == {
        ("FedAvg", "one"): "knn",
        ("FedAvg", "two"): "probe",
        ("FedProx", "one"): "accuracy",
        ("FedProx", "two"): "accuracy",
    }
    assert [made.metric(column) for column in made.columns] == [
        "knn / accuracy",
        "probe / accuracy",
    ]


def test_without_grids_every_row_has_its_own_setting() -> None:
    some = tables(choose="holdout")
    some["row"][1]["grid"] = {"method.mu": [0.5, 1.0], "local.lr": [0.1, 0.2]}
    some["row"][1]["set"] = {"local.lr": 0.2}
    made = make_study(parse(some), "paper", grids=False)
    assert made.command.endswith("--scale paper --no-grids")
    cell = made.cell("FedProx", "one")
    assert cell is not None and [point.name for point in cell.points] == [""]
    assert made.total == sum(cell.seeds for cell in made.cells)
    config = made.config(cell, cell.points[0], 0)
    assert config.local.lr == 0.2 and config.data.holdout == 0.1
    # what the grid would have varied is a setting like others now
    assert "FedProx: local.lr = 0.2" in list(describe_changes(made))
    # a point of the grid with the same values is the same run
    own = config.tables["method"]["mu"]
    some["row"][1]["grid"] = {"method.mu": [own, 2 * own]}
    tuned = make_study(parse(some), "paper")
    other = tuned.cell("FedProx", "one")
    assert other is not None
    assert tuned.config(other, other.points[0], 0).hash() == config.hash()
