"""Curves of metrics that no table is made of: which lines there are, and that they are drawn."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_recipe import scored, tables

from coterie.engine.record import RoundEvent
from coterie.reproduce.further_curves import read_rows
from coterie.reproduce.page import write_outcome
from coterie.reproduce.plan import make_study
from coterie.reproduce.recipe import parse
from coterie.reproduce.scores import Outcome
from coterie.reproduce.verdicts import conclude

VALUES = {(row, column): [0.5, 0.5] for row in ("FedAvg", "FedProx") for column in ("one", "two")}


def write_run(folder: Path, losses: list[float]) -> None:
    """The rounds of a run with these training losses."""
    folder.mkdir(parents=True)
    nothing = {
        "cohort": [],
        "lost": {},
        "rejected": {},
        "skipped": False,
        "digest": "",
        "states": "",
    }
    sizes = ("bytes_up", "bytes_down", "evaluation_bytes_up", "evaluation_bytes_down")
    usual = nothing | dict.fromkeys(sizes, 0) | {"stage": "train", "seconds": 1.0}
    lines = [
        RoundEvent(round=n, metrics={"train_loss": loss}, **usual).line()  # type: ignore[arg-type]
        for n, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))


def outcome(out: Path, folders: dict[tuple[str, str], tuple[str, ...]]) -> Outcome:
    """An outcome whose cells have these runs."""
    study = make_study(parse(tables(draw=["train_loss"])), "paper")
    made = conclude(scored(study, VALUES))
    for cell, names in folders.items():
        paths = tuple(str(out / name) for name in names)
        made.cells[cell] = replace(made.cells[cell], folders=paths)
    return made


def test_a_row_has_a_line_for_every_column_that_has_runs_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [4.0, 2.0, 1.0])
    write_run(tmp_path / "b", [2.0, 1.0, 0.0])
    made = outcome(
        tmp_path,
        {
            ("FedAvg", "one"): ("a",),
            ("FedAvg", "two"): ("b",),
            ("FedProx", "one"): ("a", "b"),
            ("FedProx", "two"): ("a", "b"),
        },
    )
    rows = dict(read_rows(made, "train_loss"))
    assert [name for name, _ in rows["FedAvg"]] == ["one", "two"]
    assert [name for name, _ in rows["FedProx"]] == ["one"]
    assert rows["FedProx"][0][1] == ((1, 3.0), (2, 1.5), (3, pytest.approx(0.5)))


def test_runs_without_the_metric_or_without_files_have_no_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [4.0, 2.0])
    made = outcome(tmp_path, {("FedAvg", "one"): ("a",), ("FedAvg", "two"): ("missing",)})
    assert read_rows(made, "another") == []
    assert [name for name, _ in read_rows(made, "train_loss")] == ["FedAvg"]


def test_the_outcome_has_a_picture_and_charts_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [4.0, 2.0])
    folder = write_outcome(outcome(tmp_path, {("FedAvg", "one"): ("a",)}), tmp_path)
    picture = (folder / "train_loss-by-row.svg").read_text()
    assert "train_loss" in picture and "FedAvg" in picture and "FedProx" not in picture
    assert "<h2>train_loss by row</h2>" in (folder / "report.html").read_text()
