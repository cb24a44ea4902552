"""Tables from a file or a data frame to predictions: whole runs, and the commands on them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.cli.main import main
from coterie.core.errors import ConfigError, DataError
from coterie.data.table import TableOptions
from coterie.experiment.given import divide_sites, read_sites

SMALL: dict[str, Any] = {
    "executor": {"kind": "serial"},
    "net": {"backbone": "logistic", "projection": 0},
    "local": {"lr": 0.1, "batch_size": 8},
    "rounds": 3,
}


def make_frame(rows: int = 60) -> pd.DataFrame:
    """The older and the smokers are ill; hospitals differ in age."""
    draw = np.random.default_rng(5)
    age = draw.normal(50, 10, rows)
    smoker = draw.choice(["yes", "no"], rows)
    ill = np.where(age + 15 * (smoker == "yes") > 58, "ill", "well")
    hospital = np.where(np.arange(rows) % 3, "north", "south")
    return pd.DataFrame({"age": age, "smoker": smoker, "hospital": hospital, "state": ill})


FRAME = make_frame()


def fit(out: Path, frame: pd.DataFrame = FRAME, **tables: Any) -> coterie.Result:
    return coterie.fit(frame, site="hospital", label="state", out=out, **SMALL, **tables)


def run_commands(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


def test_a_frame_and_the_same_file_are_predicted_alike(tmp_path: Path) -> None:
    result = fit(tmp_path / "run")
    assert result.classes == ("ill", "well") and result.clients == ("north", "south")
    assert result.score(FRAME, FRAME["state"]) > 0.75
    swapped = FRAME[["state", "smoker", "age"]]
    swapped.to_csv(tmp_path / "x.csv", index=False)
    shares = result.predict_proba(FRAME)
    assert np.array_equal(result.predict_proba(swapped), shares)
    assert np.allclose(result.predict_proba(tmp_path / "x.csv"), shares, atol=1e-6)
    assert np.array_equal(result.encode(FRAME), result.encoder()(result.prepare(FRAME)).numpy())


def test_a_model_says_what_its_columns_are(tmp_path: Path) -> None:
    columns = json.loads((fit(tmp_path / "run").folder / "model.json").read_text())["input"][
        "columns"
    ]
    age, smoker = columns
    assert (age["name"], age["kind"], age["filling"]) == ("age", "number", age["mean"])
    assert smoker == {"name": "smoker", "kind": "category", "values": ["no", "yes"]}


def test_what_the_columns_lack_is_named(tmp_path: Path) -> None:
    result = fit(tmp_path / "run")
    with pytest.raises(DataError, match="x has no column 'smoker'; it has: age"):
        result.predict(FRAME[["age"]])
    with pytest.raises(DataError, match=r"x has no names of columns, .* a table with age, smoker"):
        result.predict(np.zeros((2, 3)))


def test_sites_that_standardise_by_themselves_are_named_to_predict(tmp_path: Path) -> None:
    result = fit(tmp_path / "run", data={"standardise": "site"})
    with pytest.raises(DataError, match=r"nosuch\.csv does not exist; give a file \.csv or"):
        result.predict(tmp_path / "nosuch.csv")
    with pytest.raises(ConfigError, match=r"choose one with client= .*--client.*: north, south"):
        result.predict(FRAME)
    north, south = (result.predict_proba(FRAME, client=name) for name in ("north", "south"))
    assert not np.allclose(north, south)


def test_a_column_of_numbers_may_be_a_category(tmp_path: Path) -> None:
    frame = FRAME.assign(ward=np.arange(len(FRAME)) % 4)
    result = fit(tmp_path / "run", frame, data={"categorical": ["ward"]})
    assert result.prepare(frame).shape == (len(frame), 7)


def test_test_samples_of_a_frame_are_encoded_as_the_sites(tmp_path: Path) -> None:
    result = fit(tmp_path / "run", test=FRAME[:30])
    summary = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert sum(client["test"] for client in summary["clients"]) == 30
    assert result.metrics["accuracy"] > 0.6


def test_test_rows_are_tested_at_their_own_sites(tmp_path: Path) -> None:
    """With the means of each site, or those of all; without the column they belong to nobody."""
    tests = FRAME[:20]
    fit(tmp_path / "site", test=tests, data={"standardise": "site"})
    fit(tmp_path / "all", test=tests)
    for name in ("site", "all"):
        summary = json.loads((tmp_path / name / "partition.json").read_text())
        held = {client["name"]: (client["train"], client["test"]) for client in summary["clients"]}
        assert held == {"north": (40, 13), "south": (20, 7)}
    anywhere = tests.drop(columns="hospital")
    with pytest.raises(ConfigError, match=r"'site' needs the site of every test row"):
        fit(tmp_path / "other", test=anywhere, data={"standardise": "site"})
    with pytest.raises(DataError, match="the test samples: the site 'east' has test rows and no"):
        fit(tmp_path / "other", test=tests.assign(hospital="east"))
    with pytest.raises(ConfigError, match=r"data.test = 'x.csv' has no meaning"):
        fit(tmp_path / "other", data={"test": "x.csv"})


def test_rows_of_a_test_frame_are_encoded_with_the_means_of_their_site() -> None:
    options = TableOptions(label="state", site="hospital", standardise="site")
    sites = read_sites(FRAME, "state", "hospital")
    dataset, shares = divide_sites(sites, FRAME[:20], 0, options=options)
    for client, name in enumerate(("north", "south")):
        ages = FRAME["age"][FRAME["hospital"] == name]
        own = FRAME[:20][FRAME["hospital"][:20] == name]["age"]
        expected = (own - ages.mean()) / ages.std()
        assert np.allclose(dataset.x_test[shares.test[client]][:, 0], expected, atol=1e-6)


def test_frames_and_arrays_are_not_mixed() -> None:
    sites = {"a": FRAME[["age"]], "b": np.zeros((5, 1))}
    with pytest.raises(DataError, match="site 'b' has no names of columns, and others have"):
        coterie.fit(sites, objective="simclr")
    with pytest.raises(
        ConfigError, match=r"data.missing = 'drop' is for tables with named columns"
    ):
        coterie.fit(
            {"a": (np.zeros((9, 2)), [0, 1, 0] * 3)}, data={"missing": "drop"}, out=Path("never")
        )


def test_commands_take_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "all.csv", tmp_path / "run"
    FRAME.assign(age=FRAME["age"].where(FRAME.index != 4)).to_csv(path, index=False)
    words = ["data.name=table", f"data.root={path}", "data.label=state", "data.site=hospital"]
    run_commands("run", "heart/fedavg", *words, "run.rounds=2", "--out", str(out))
    printed = capsys.readouterr().out
    assert "1 missing cell filled in with the mean: age 1" in printed
    assert "tables with 2 columns (3 inputs), 2 classes" in printed
    run_commands("predict", str(out), str(path), "--out", str(tmp_path / "p.csv"))
    with (tmp_path / "p.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(FRAME) and {row["prediction"] for row in rows} <= {"ill", "well"}
    right = sum(row["prediction"] == state for row, state in zip(rows, FRAME["state"], strict=True))
    measured = f"accuracy {right / 60:.4f} ({right} of 60 with a label)"
    assert measured in capsys.readouterr().out
    FRAME.to_parquet(tmp_path / "all.parquet")
    run_commands(
        "predict", str(out), str(tmp_path / "all.parquet"), "--out", str(tmp_path / "q.csv")
    )
    assert " of 60 with a label)" in capsys.readouterr().out
    FRAME.assign(state=FRAME["state"].where(FRAME.index < 9)).to_csv(path, index=False)
    run_commands("predict", str(out), str(path), "--out", str(tmp_path / "p.csv"))
    assert " of 9 with a label)" in capsys.readouterr().out
    FRAME.drop(columns="state").to_csv(path, index=False)
    run_commands("predict", str(out), str(path), "--out", str(tmp_path / "p.csv"))
    assert "accuracy" not in capsys.readouterr().out
    run_commands("embed", str(out), str(path), "--out", str(tmp_path / "e.npy"))
    assert np.load(tmp_path / "e.npy").shape == (len(FRAME), 3)


def test_a_heart_run_says_what_it_does_with_missing_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, stored = tmp_path / "run", Path(coterie.__file__).parent / "data" / "heart" / "va.csv"
    run_commands("run", "heart/fedavg", "run.rounds=1", "--out", str(out))
    assert "180 of 920 rows have a missing value and are left out" in capsys.readouterr().out
    assert coterie.load(out).config["data"]["missing"] == "drop"
    run_commands("predict", str(out), str(stored), "--out", str(tmp_path / "p.csv"))
    printed = capsys.readouterr().out
    assert "filled in with the mean: trestbps 56, " in printed and "200 samples" in printed
    named = [line.partition(",")[0] for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert named == ["sample", *map(str, range(2, 202))]  # rows, as messages count them


def test_clients_that_are_no_sites_cannot_standardise_by_site(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'site' makes each site a client"):
        coterie.run(
            "heart/fedavg",
            data={"standardise": "site"},
            partition={"kind": "iid", "clients": 3},
            out=tmp_path / "run",
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits/simsiam", "partition.kind = 'dirichlet' needs labels, and data.label is empty; "),
        ("heart/fedavg", "objective.name = 'supervised' needs labels, and data.label is empty; "),
    ],
)
def test_a_table_without_labels_is_asked_for_their_column(
    tmp_path: Path, name: str, message: str
) -> None:
    FRAME.to_csv(tmp_path / "all.csv", index=False)
    data = {"name": "table", "root": str(tmp_path / "all.csv")}
    divided = {"site": "hospital"} if name == "heart/fedavg" else {}
    partition = {} if divided else {"partition.kind": "dirichlet"}
    with pytest.raises(ConfigError, match=f"{message}name their column with data.label=COLUMN"):
        coterie.run(name, data={**data, **divided}, out=tmp_path / "run", **partition)
    with pytest.raises(ConfigError, match="have no labels; name their column with label='COLUMN'"):
        coterie.fit(FRAME, site="hospital")


def test_an_exported_program_takes_encoded_rows_and_knows_the_columns(tmp_path: Path) -> None:
    import torch

    result = fit(tmp_path / "run")
    path = result.export(tmp_path / "model.pt2")
    extra = {"coterie.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    logits = program(result.prepare(FRAME))["logits"].detach()
    assert np.allclose(logits.softmax(dim=1), result.predict_proba(FRAME), atol=1e-6)
    assert [c["name"] for c in json.loads(extra["coterie.json"])["columns"]] == ["age", "smoker"]
