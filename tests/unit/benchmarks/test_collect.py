"""benchmarks/papers/collect.py merges outcomes that were run in several commands."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from coterie.reproduce import recipe
from coterie.reproduce.page import write_outcome
from coterie.reproduce.plan import locate_run, make_study
from coterie.reproduce.tables import to_markdown

PAPERS = Path(__file__).parents[3] / "benchmarks" / "papers"
SCRIPT = PAPERS / "collect.py"
ROUNDS = "coterie reproduce moon-rounds --scale laptop --seeds 1 --no-grids"
COMMAND = "coterie reproduce moon-l2 --scale laptop --seeds 1 --no-grids"


PRINTED = {"FedAvg": 0.663, "l2 norm": 0.658, "MOON": 0.691}


def make_outcome(command: str, **rows: list[float]) -> dict[str, Any]:
    """An outcome of one column, with the values of rows by seed."""
    cells = [
        {
            "row": name,
            "column": "CIFAR-10",
            "seeds": len(values),
            "values": values,
            "mean": sum(values) / len(values),
            "paper": PRINTED[name],
        }
        for name, values in rows.items()
    ]
    return {"command": command, "columns": [{"name": "CIFAR-10", "target": None, "rows": cells}]}


def collect(new: dict[str, Any], old: dict[str, Any] | None, older: bool = False) -> Any:
    return runpy.run_path(str(SCRIPT))["collect"](new, old, Path("runs"), older)


def test_rows_that_were_not_run_again_are_kept() -> None:
    old = make_outcome(COMMAND, FedAvg=[0.4], **{"l2 norm": [0.3]})
    merged = collect(make_outcome(COMMAND, FedAvg=[0.5], MOON=[0.6]), old)
    values = {row: cell.values for (row, _), cell in merged.cells.items()}
    assert values == {"FedAvg": [0.5], "l2 norm": [0.3], "MOON": [0.6]}
    assert [row.name for row in merged.study.rows] == ["FedAvg", "l2 norm", "MOON"]
    assert [column.name for column in merged.study.columns] == ["CIFAR-10"]


def test_more_seeds_stay_before_fewer() -> None:
    old = make_outcome(COMMAND, FedAvg=[0.4, 0.5], MOON=[0.4])
    merged = collect(make_outcome(COMMAND, FedAvg=[0.7], MOON=[0.6]), old)
    assert merged.cells["FedAvg", "CIFAR-10"].seeds == 2
    assert merged.cells["MOON", "CIFAR-10"].values == [0.6]
    assert merged.finished == 3


def test_an_outcome_without_a_committed_one_stands_alone() -> None:
    merged = collect(make_outcome(COMMAND, FedAvg=[0.4], MOON=[0.6]), None)
    assert merged.cells["MOON", "CIFAR-10"].verdict.startswith("direction")


def test_the_command_names_the_rows_of_the_merged_table() -> None:
    new = make_outcome(f"{COMMAND} --rows 'MOON'", FedAvg=[0.4], MOON=[0.5])
    one = collect(new, None)
    assert one.study.command == f"{COMMAND} --rows 'FedAvg,MOON' --columns 'CIFAR-10'"
    old = make_outcome(COMMAND, **{"l2 norm": [0.3]})
    assert collect(new, old).study.command == f"{COMMAND} --columns 'CIFAR-10'"


def test_the_command_of_a_table_with_gaps_is_that_of_the_new_outcome() -> None:
    command = "coterie reproduce fedproc-table3 --scale laptop --seeds 1 --rows 'MOON'"
    new = make_outcome(command, FedAvg=[0.4], MOON=[0.5])
    new["columns"][0]["name"] = new["columns"][0]["rows"][0]["column"] = "beta = 5"
    new["columns"][0]["rows"][1]["column"] = "beta = 5"
    old = make_outcome(command, FedAvg=[0.4])
    old["columns"][0]["name"] = old["columns"][0]["rows"][0]["column"] = "beta = 0.5"
    assert collect(new, old).study.command == command


def make_seed(seed: int, root: str = "", **rows: list[float]) -> dict[str, Any]:
    """An outcome of one seed, with the curves of rows; their last value counts."""
    chosen = recipe.load("moon-rounds")
    study = make_study(chosen, "laptop", gpu=False, seeds=1, root=root, grids=False)
    outcome = make_outcome("", **{name: [curve[-1]] for name, curve in rows.items()})
    outcome["command"] = f"{ROUNDS} --first-seed {seed}" if seed else ROUNDS
    outcome["command"] += f" data.root={root}" if root else ""
    for cell in outcome["columns"][0]["rows"]:
        planned = study.cell(cell["row"], "CIFAR-10")
        assert planned is not None
        folder = locate_run(Path(), study.config(planned, planned.points[0], seed))
        curve = list(enumerate(rows[cell["row"]], start=1))
        cell |= {"folders": [str(folder)], "numbers": [seed], "curve": curve, "seconds": [1.0]}
        cell["length"] = len(curve)
    return outcome


def test_a_second_seed_joins_the_first() -> None:
    first = make_seed(0, FedAvg=[0.1, 0.2, 0.4], MOON=[0.1, 0.5, 0.5])
    second = make_seed(1, FedAvg=[0.1, 0.2, 0.2], MOON=[0.2, 0.35, 0.4])
    merged = collect(second, first)
    fedavg, moon = (merged.cells[row, "CIFAR-10"] for row in ("FedAvg", "MOON"))
    assert fedavg.by_seed() == {0: 0.4, 1: 0.2} and moon.by_seed() == {0: 0.5, 1: 0.4}
    assert merged.targets == {"CIFAR-10": pytest.approx(0.3)}  # the mean of both seeds of FedAvg
    assert moon.rounds == (2, 1)  # where FedAvg ended on the same seed
    assert moon.curve[0] == (1, pytest.approx(0.15))
    assert merged.study.command.startswith(ROUNDS.replace("--seeds 1", "--seeds 2"))
    assert "--first-seed" not in merged.study.command


def test_seeds_of_data_in_other_folders_are_joined() -> None:
    first = make_seed(0, FedAvg=[0.4], MOON=[0.5])
    second = make_seed(1, root="/elsewhere/data", FedAvg=[0.2], MOON=[0.4])
    merged = collect(second, first)
    assert [cell.by_seed() for cell in merged.cells.values()] == [
        {0: 0.4, 1: 0.2},
        {0: 0.5, 1: 0.4},
    ]
    assert "elsewhere" not in merged.study.command


def test_a_target_is_that_of_the_curves_that_were_kept() -> None:
    first, second = make_seed(0, FedAvg=[0.4, 0.5]), make_seed(1, FedAvg=[0.7])
    first["columns"][0]["rows"][0]["folders"] = ["cells/fedavg-of-another-time"]
    for outcome, target in ((first, 0.5), (second, 0.7)):
        outcome["columns"][0]["target"] = target
    merged = collect(second, first)
    assert merged.cells["FedAvg", "CIFAR-10"].by_seed() == {0: 0.5}
    assert merged.targets == {"CIFAR-10": 0.5}


def test_seeds_of_other_settings_are_not_joined() -> None:
    first, second = make_seed(0, FedAvg=[0.4], MOON=[0.5]), make_seed(1, FedAvg=[0.2], MOON=[0.4])
    first["columns"][0]["rows"][0]["folders"] = ["cells/fedavg-of-another-time"]
    merged = collect(second, first)
    # MOON's neither: the rounds that it needs are counted against FedAvg on the same seeds
    assert [cell.by_seed() for cell in merged.cells.values()] == [{0: 0.4}, {0: 0.5}]


def test_seeds_of_settings_that_were_named_before_are_joined_on_demand() -> None:
    first, second = make_seed(0, FedAvg=[0.4], MOON=[0.5]), make_seed(1, FedAvg=[0.2], MOON=[0.4])
    first["columns"][0]["rows"][0]["folders"] = ["cells/fedavg-of-another-time"]
    both = collect(second, first, older=True).cells.values()
    assert [cell.by_seed() for cell in both] == [{0: 0.4, 1: 0.2}, {0: 0.5, 1: 0.4}]


def test_cells_of_a_committed_outcome_can_be_drawn_with_new_ones(tmp_path: Path) -> None:
    functions = runpy.run_path(str(SCRIPT))
    outcome = json.loads((PAPERS / "ssfl-table2" / "outcome.json").read_text())
    merged = functions["collect"](outcome, outcome, tmp_path)
    write_outcome(merged, tmp_path)
    assert functions["list_incomplete"](merged) == ["train_loss-by-row.svg"]


@pytest.mark.parametrize("path", sorted(PAPERS.glob("*/outcome.json")), ids=lambda p: p.parent.name)
def test_committed_outcomes_can_be_merged(path: Path) -> None:
    outcome = json.loads(path.read_text())
    if "recipe" not in outcome or outcome["measure"] == "cost":
        return  # not the outcome of runs of a recipe
    merged = collect(outcome, outcome)
    known = {row.name for row in merged.study.recipe.rows}
    rows = {row["row"] for column in outcome["columns"] for row in column["rows"]}
    assert {row.name for row in merged.study.rows} == rows & known
    text = to_markdown(merged)
    assert all(f"| {name} |" in text for name in rows & known)


def share(name: str, scale: str, source: str | dict[str, Any]) -> Any:
    """What the table of a recipe takes from another outcome; a committed one by its name."""
    functions, other = runpy.run_path(str(SCRIPT)), source
    if isinstance(source, str):
        other = json.loads((PAPERS / source / "outcome.json").read_text())
    study = make_study(recipe.load(name), scale, gpu=False, seeds=1, grids=False)
    return functions["share"](other, study)


def test_a_table_takes_the_runs_of_another_whose_configurations_are_its_own() -> None:
    curves = {"FedAvg": [0.1, 0.2, 0.4], "MOON": [0.1, 0.45, 0.5]}
    outcome = share("moon-rounds", "laptop", make_seed(0, **curves))
    fedavg, moon = (outcome.cell(row, "CIFAR-10") for row in ("FedAvg", "MOON"))
    assert [row.name for row in outcome.study.rows] == ["FedAvg", "MOON"]
    assert outcome.targets == {"CIFAR-10": fedavg.mean}  # of this table: where FedAvg ends
    assert moon.rounds == (2,)
    words = "--scale laptop --seeds 1 --no-grids --rows 'FedAvg,MOON' --columns 'CIFAR-10'"
    assert outcome.study.command == f"coterie reproduce moon-rounds {words}"


def test_runs_of_another_scale_are_not_taken() -> None:
    assert not share("moon-rounds", "laptop", "fedssc-table1-paper").cells


def test_a_run_is_taken_for_all_columns_that_read_it_after_some_rounds() -> None:
    outcome = share("fedproc-table6", "laptop", "moon-parties")
    curves = {c: cell.length for (row, c), cell in outcome.cells.items() if row == "MOON"}
    assert list(curves.values()) == [20, 40, 50, 100]


def test_a_run_is_taken_for_the_rows_that_read_the_same_metric_of_it() -> None:
    outcome = share("mfcl-table2", "laptop", "mfcl-figure6")
    taken = [row for row, column in outcome.cells]
    # not those that read a linear classifier on h, or a client's own classes, of the same runs
    assert taken == ["MFCL(BN)", "MFCL(BN averaged)", "MFCL(GN)", "MFCL(PN)"]
