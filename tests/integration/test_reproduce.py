"""`coterie reproduce`: a recipe from the command line, kept runs, interrupts, failures."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.main import main
from coterie.engine.record import Event, RoundEvent
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.reproduce import runs
from coterie.reproduce.recipe import list_shipped

HEAD = """# coterie reproduce tiny        A table of three rows
paper = "Somebody, Table 1"
about = "A table."
unit = "percent"
reference = "FedAvg"
base = "digits/fedavg"

[scale.smoke]
seeds = 2
set = { "run.rounds" = 3, "local.epochs" = 1, "partition.clients" = 3, "executor.kind" = "serial" }
note = "Three rounds."
"""
ROWS = """
[[row]]
name = "FedAvg"
config = "fedavg"
value = { "accuracy" = 60.0 }

[[row]]
name = "FedProx"
config = "fedprox"
value = { "accuracy" = 65.0 }

[[row]]
name = "alone"
config = "solo"
seeds = 1

[[claim]]
text = "FedProx is above FedAvg"
above = "FedProx"
below = "FedAvg"
"""


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    return int(ended.value.code or 0)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, "tiny", HEAD + ROWS)


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def outcome(folder: Path, name: str = "tiny") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}-smoke" / "outcome.json").read_text())
    return found


def metrics(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.glob("cells/*/metrics.jsonl"))
    return {file.parent.name: file.read_bytes() for file in files}


def test_a_recipe_becomes_an_outcome_and_is_kept(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tiny), "--scale", "smoke", "--out", "out"]
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "[5/5] FedProx, accuracy, seed 1: accuracy 0." in said
    assert "FedProx is above FedAvg" in said and "kept in out/tiny-smoke" in said
    assert sorted(p.name for p in (tmp_path / "out" / "tiny-smoke").iterdir()) == [
        "curves-accuracy.svg",
        "outcome.json",
        "report.html",
        "table.md",
    ]
    rows = outcome(tmp_path / "out")["columns"][0]["rows"]
    assert [row["seeds"] for row in rows] == [2, 2, 1]
    assert all(len(row["curve"]) == 3 for row in rows)
    before = metrics(tmp_path / "out")
    assert len(before) == 5 and all(name[:4] in ("feda", "fedp", "solo") for name in before)

    table = (tmp_path / "out" / "tiny-smoke" / "table.md").read_bytes()
    assert call(*words) == 0
    assert capsys.readouterr().out.count("(kept)") == 5
    assert metrics(tmp_path / "out") == before
    assert (tmp_path / "out" / "tiny-smoke" / "table.md").read_bytes() == table


@pytest.mark.slow
def test_the_second_seed_can_be_run_alone_and_is_kept_for_both(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(tiny), "--scale", "smoke", "--rows", "FedProx", "--out", "out")
    assert call(*words, "--seeds", "1", "--first-seed", "1") == 0
    said = capsys.readouterr().out
    assert f"0 of 2 runs are finished in {tmp_path / 'out' / 'cells'}" in said
    assert "seed 1: " in said and "seed 0" not in said
    assert call(*words, "--seeds", "2") == 0
    said = capsys.readouterr().out
    assert "2 of 4 runs are finished" in said and said.count("(kept)") == 2


def test_runs_are_shared_between_recipes_and_between_columns(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(tiny), "--scale", "smoke", "--out", "out") == 0
    columns = """
    [[column]]
    name = "early"
    at = 2
    [[column]]
    name = "late"
    """
    rows = ROWS.replace('"accuracy" =', '"late" =')
    other = written(tmp_path, "other", HEAD + columns + rows)
    capsys.readouterr()
    assert call(str(other), "--scale", "smoke", "--out", "out") == 0
    assert capsys.readouterr().out.count("(kept)") == 10
    early, late = outcome(tmp_path / "out", "other")["columns"]
    assert [len(row["curve"]) for row in early["rows"]] == [2, 2, 2]
    assert early["rows"][0]["folders"] == late["rows"][0]["folders"]
    assert len(metrics(tmp_path / "out")) == 5


@pytest.mark.slow
def test_a_grid_is_chosen_on_held_out_samples(tiny: Path, tmp_path: Path) -> None:
    grid = 'config = "fedprox"\ngrid = { "method.mu" = [0.001, 10.0] }'
    text = tiny.read_text().replace('config = "fedprox"', grid)
    tiny.write_text(text.replace("base =", 'choose = "holdout"\nbase ='))
    assert call(str(tiny), "--scale", "smoke", "--out", "out") == 0
    told = outcome(tmp_path / "out")
    row = told["columns"][0]["rows"][1]
    assert row["chosen_by"] == "holdout_accuracy"
    best = max(row["grid"], key=lambda tried: tried["chosen_by"])
    assert best["chosen"] and row["chosen"] == best["name"]
    assert row["values"][0] == best["value"] and len(row["values"]) == 2
    assert "chosen by holdout_accuracy" in (tmp_path / "out/tiny-smoke/table.md").read_text()


@pytest.mark.slow
def test_an_interrupt_loses_nothing_and_can_be_resumed(
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [str(tiny), "--scale", "smoke", "--out"]
    assert call(*words, "whole") == 0
    capsys.readouterr()
    started = []

    def stop(event: Event) -> None:
        if isinstance(event, RoundEvent) and len(started) == 2 and event.round == 1:
            raise KeyboardInterrupt

    def interrupted(*arguments: Any, **more: Any) -> Result:
        started.append(arguments)
        return execute(*arguments, **{**more, "recorders": [stop]})

    with monkeypatch.context() as patch:
        patch.setattr(runs, "execute", interrupted)
        assert call(*words, "out") == 130
    said = capsys.readouterr().err
    assert said == "coterie: interrupted; to resume, repeat the command with --resume\n"
    assert outcome(tmp_path / "out")["finished"] == 1

    assert call(*words, "out") == 2
    said = capsys.readouterr().err
    assert "holds an unfinished run; add --resume to finish it" in said
    assert len(said.splitlines()) == 1

    assert call(*words, "out", "--resume") == 0
    assert "[1/5] FedAvg, accuracy, seed 0" in capsys.readouterr().out
    whole, resumed = outcome(tmp_path / "whole"), outcome(tmp_path / "out")
    for one, two in zip(whole["columns"][0]["rows"], resumed["columns"][0]["rows"], strict=True):
        assert one["values"] == two["values"] and one["curve"] == two["curve"]


def test_a_run_that_fails_leaves_its_reason_and_does_not_stop_the_others(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = 'config = "fedprox"\nset = { "local.lr" = 1e9 }'
    tiny.write_text(tiny.read_text().replace('config = "fedprox"', bad))
    assert call(str(tiny), "--scale", "smoke", "--out", "out") == 4
    said = capsys.readouterr()
    assert "seed 0: failed: no client's training stayed finite" in said.out
    assert "alone, accuracy, seed 0: accuracy" in said.out
    assert said.err.startswith("coterie: 2 of 5 runs failed; FedProx, accuracy, seed 0: no client")
    assert len(said.err.splitlines()) == 1
    table = (tmp_path / "out/tiny-smoke/table.md").read_text()
    assert "| FedProx | failed | 0 | - | 65.0 |" in table
    assert "- FedProx, accuracy, seed 0: no client's training stayed finite" in table


def test_a_dry_run_estimates_and_writes_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(tiny), "--scale", "smoke", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].endswith(": checks the wiring")
    assert lines[1].startswith("FedAvg, accuracy: 2 seeds, 2 to run, about ")
    assert lines[-1].startswith("in all about ")
    assert sorted(tmp_path.iterdir()) == [tiny]
    assert call(str(tiny), "--scale", "smoke", "--out", "out") == 0
    before = sorted((tmp_path / "out").rglob("*"))
    capsys.readouterr()
    assert call(str(tiny), "--scale", "smoke", "--out", "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "FedAvg, accuracy: 2 seeds, 2 kept\n" in said and "in all about 0.0 s" in said
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_a_dry_run_says_what_is_missing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    columns = """
    [[column]]
    name = "accuracy"
    set = { "data.name" = "cifar10" }
    [[column]]
    name = "large"
    gpu = true
    """
    tiny.write_text(HEAD + columns + ROWS)
    assert call(str(tiny), "--scale", "smoke", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "FedAvg, accuracy: 2 seeds, 2 to run, the data are not here\n" in said
    assert "large is left out: it needs a GPU\n" in said
    assert "what cannot be estimated here" in said
    assert call(str(tiny), "--scale", "smoke") == 3
    assert "5 of 5 runs failed" in capsys.readouterr().err


def test_without_a_recipe_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    said = capsys.readouterr().out
    assert all(name in said for name in list_shipped())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["moon-table"], "there is no recipe 'moon-table'; did you mean 'moon-table1'?"),
        (["tiny.toml", "--scale", "paper"], "tiny.toml: scale = 'paper' is not known"),
        (["wrong.toml", "--scale", "smoke"], "wrong.toml: row 'FedAvg' has no key 'confg'"),
        (["tiny.toml", "--first-seed", "99999"], "--first-seed 99999 must be 10,000 or fewer"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str],
    reason: str,
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(tmp_path, "wrong", HEAD + ROWS.replace("config", "confg"))
    assert call(*words) == 2
    said = capsys.readouterr().err
    assert reason in said and len(said.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_everything_that_is_left_out_is_an_error(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiny.write_text(HEAD + '[[column]]\nname = "accuracy"\ngpu = true\n' + ROWS)
    assert call(str(tiny), "--scale", "smoke") == 2
    said = capsys.readouterr()
    assert "accuracy is left out: it needs a GPU" in said.out
    assert "nothing of" in said.err


def test_some_rows_are_run_and_what_is_there_stays_in_the_table(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (str(tiny), "--scale", "smoke", "--out", str(tmp_path), "--seeds", "1")
    assert call(*asked, "--rows", "FedProx") == 0
    assert len(metrics(tmp_path)) == 2
    assert "[2/2] FedProx" in capsys.readouterr().out
    assert call(*asked, "--rows", "alone", "--columns", "accuracy") == 0
    assert len(metrics(tmp_path)) == 3
    found = outcome(tmp_path)
    rows = [row["row"] for row in found["columns"][0]["rows"]]
    assert rows == ["FedAvg", "FedProx", "alone"]
    assert found["command"].endswith("--seeds 1 --rows 'alone' --columns 'accuracy'")
    assert (found["finished"], found["total"]) == (3, 3)
    said = capsys.readouterr().out
    assert "[1/3] FedAvg" in said and "[2/3] FedProx" in said and said.count("(kept)") == 2


@pytest.mark.parametrize("option", ["--rows", "--columns"])
def test_a_row_or_column_that_is_not_there_is_one_line(
    tiny: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(tiny), "--scale", "smoke", "--out", str(tmp_path), option, "nothing") == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"coterie: {option}: 'nothing' is not known; there are: ")
    assert said.err.count("\n") == 1
    assert not metrics(tmp_path)


def test_what_is_sent_is_counted_without_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
paper = "Somebody, Table 8"
about = "What is sent."
measure = "cost"
reference = "FedAvg"
base = "digits/fedavg"
[cost]
shape = [1, 8, 8]
clients = 4
samples = 50
code = 2
[scale.smoke]
note = "The same at all scales."
[[column]]
name = "parameters"
metric = "parameters"
[[column]]
name = "all bits"
metric = "total_bits"
[[row]]
name = "FedAvg"
config = "fedavg"
set = { "run.rounds" = 3, "net.backbone" = "mlp", "net.projection" = 0 }
value = { "parameters" = 1e9 }
[[claim]]
text = "FedAvg is as large as itself"
kind = "times"
above = "FedAvg"
below = "FedAvg"
margin = 1.0
"""
    file = written(tmp_path, "sent", text)
    asked = (str(file), "--scale", "smoke", "--out", str(tmp_path / "out"))
    assert call(*asked, "--dry-run") == 0
    assert "nothing is run" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert call(*asked) == 0
    folder = tmp_path / "out" / "sent-smoke"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sent-smoke"]
    found = json.loads((folder / "outcome.json").read_text())
    first, second = (column["rows"][0] for column in found["columns"])
    assert second["mean"] == 4 * 3 * 2 * 32 * 2 * first["mean"]  # clients, rounds, ways, bits, code
    assert first["verdict"].startswith("not reproduced: printed ")
    assert [one["verdict"] for one in found["claims"]] == ["holds"]
    table = (folder / "table.md").read_text()
    assert "nothing is run." in table and "## As Coterie sends it" in table
    assert "Without the error-correcting code" in (folder / "report.html").read_text()
