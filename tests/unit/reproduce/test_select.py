"""Some rows and columns of a recipe: what is run then, and what stays in the table."""

from pathlib import Path
from typing import Any

import pytest
from made_recipe import concluded, tables

from coterie.core.errors import ConfigError
from coterie.reproduce.plan import Study, locate_run, make_study, select
from coterie.reproduce.recipe import Claim, parse
from coterie.reproduce.runs import list_trials
from coterie.reproduce.scores import Scores
from coterie.reproduce.tables import build_tables, to_text
from coterie.reproduce.verdicts import check_claim

GRID = {"method.mu": [0.1, 1.0]}


def three(scale: str = "paper", **row: Any) -> Study:
    """The recipe with a third row, whose name has a comma, and other keys for FedProx."""
    some = tables()
    some["row"][1].update(row)
    some["row"].append({"name": "MOON, twice", "config": "moon"})
    return make_study(parse(some), scale)


def finish(study: Study, out: Path, *names: str, seeds: int = 2) -> None:
    """Leave what a finished run leaves for the cells of these names."""
    for cell in study.cells:
        for point in cell.points if cell.name in names else ():
            for number in range(seeds):
                folder = locate_run(out, study.config(cell, point, number))
                folder.mkdir(parents=True)
                (folder / "report.html").touch()


def test_without_names_the_study_is_as_it_was(tmp_path: Path) -> None:
    study = three()
    assert select(study, (), (), tmp_path) is study


def test_only_what_is_named_is_run_and_the_reference(tmp_path: Path) -> None:
    study = select(three(), ["MOON, twice"], ["two"], tmp_path)
    assert [cell.name for cell in study.cells] == ["FedAvg, two", "MOON, twice, two"]
    assert [column.name for column in study.columns] == ["two"]
    assert study.total == 4
    assert study.command == (
        "coterie reproduce custom --scale paper --rows 'MOON, twice' --columns 'two'"
    )


@pytest.mark.parametrize(
    "texts", [["FedProx,MOON, twice"], ["MOON, twice,FedProx"], ["MOON, twice", "FedProx"]]
)
def test_names_stand_between_commas_or_in_options_of_their_own(
    tmp_path: Path, texts: list[str]
) -> None:
    study = select(three(), texts, (), tmp_path)
    assert [row.name for row in study.rows] == ["FedAvg", "FedProx", "MOON, twice"]
    assert [column.name for column in study.columns] == ["one", "two"]
    assert study.asked == {"rows": ("FedProx", "MOON, twice")}


def test_a_name_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--rows: 'FedProxx' is not known; did you mean"):
        select(three(), ["FedProxx"], (), tmp_path)
    with pytest.raises(ConfigError, match="--columns: 'nine' is not known; there are: one, two"):
        select(three(), (), ["one,nine"], tmp_path)
    with pytest.raises(ConfigError, match="--rows: '' is not known"):
        select(three(), [""], (), tmp_path)
    some = tables()
    some["column"][1]["scales"] = ["paper"]
    with pytest.raises(ConfigError, match="'two' is not run here at the smoke scale; there are: o"):
        select(make_study(parse(some), "smoke"), (), ["two"], tmp_path)


def test_what_is_finished_of_the_others_stays_and_is_not_run(tmp_path: Path) -> None:
    whole = three()
    finish(whole, tmp_path, "FedAvg, one", "FedProx, two", seeds=1)
    study = select(whole, ["MOON, twice"], ["one"], tmp_path)
    assert {cell.name: (cell.asked, cell.seeds) for cell in study.cells} == {
        "FedAvg, one": (True, 2),
        "MOON, twice, one": (True, 2),
        "FedProx, two": (False, 1),
    }
    trials = [trial.name for trial in list_trials(Scores(study), tmp_path)]
    assert trials == [
        "FedAvg, one, seed 0",
        "MOON, twice, one, seed 0",
        "FedProx, two, seed 0",
        "FedAvg, one, seed 1",
        "MOON, twice, one, seed 1",
    ]
    assert study.total == len(trials)


def test_a_grid_stays_once_all_of_it_was_tried(tmp_path: Path) -> None:
    whole = three(grid=GRID)
    finish(whole, tmp_path, "FedProx, one", seeds=1)
    cell = select(whole, ["FedAvg"], ["two"], tmp_path).cell("FedProx", "one")
    assert cell is not None
    assert (cell.asked, cell.seeds, len(cell.points)) == (False, 1, 2)
    folder = locate_run(tmp_path, whole.config(cell, cell.points[1], 0))
    (folder / "report.html").unlink()
    assert select(whole, ["FedAvg"], ["two"], tmp_path).cell("FedProx", "one") is None


def test_a_claim_about_all_columns_is_tested_where_both_rows_are(tmp_path: Path) -> None:
    whole = three()
    finish(whole, tmp_path, "FedAvg, two")
    study = select(whole, ["FedProx"], ["one"], tmp_path)
    values = {("FedAvg", "one"): [0.6, 0.61], ("FedProx", "one"): [0.7, 0.71]}
    outcome = concluded(study, values)
    said = [
        Claim("everywhere", "FedProx", "FedAvg"),
        Claim("in two", "FedProx", "FedAvg", columns=("two",)),
        Claim("rises", "FedProx", kind="monotone"),
    ]
    findings = [check_claim(claim, outcome, str) for claim in said]
    assert [finding.verdict for finding in findings] == [
        "holds; run in one alone",
        *["not tested here"] * 2,
    ]
    assert [table.title for table in build_tables(outcome)] == ["one", "two"]


def test_tables_and_claims_fit_a_terminal_with_every_number_whole(tmp_path: Path) -> None:
    values = {
        ("FedAvg", "one"): [0.6, 0.61],
        ("FedProx", "one"): [0.7, 0.71],
        ("MOON, twice", "one"): [0.5, 0.72],
    }
    outcome = concluded(three(), values)
    text = to_text(outcome, 60)
    assert max(map(len, text.splitlines())) <= 60
    for table in build_tables(outcome):
        assert table.to_text(60) != table.to_text(200)
        for cell in (cell for line in table.lines for cell in line):
            assert cell in text
