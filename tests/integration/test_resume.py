"""`--resume`: where it starts anew, goes on, refuses; and checkpoints that were damaged."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import coterie
import toy
from resuming import Reference, Run, files, half_done, results, rewrite_states

CHECKPOINT = ("server.safetensors", "state.json", "manifest.json")


@pytest.mark.parametrize("there", ["missing", "empty", "locked before"])
def test_without_a_run_it_starts_anew(
    there: str, reference: Reference, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "deep" / "run"
    if there != "missing":
        out.mkdir(parents=True)
    if there == "locked before":
        (out / ".lock").write_text("process 1 on elsewhere")
    assert "4 rounds" in run(reference[1], "--out", out, "--resume")
    assert results(out) == results(reference[0])


def test_a_finished_run_is_left_as_it_is(reference: Reference, copy: Path, run: Run) -> None:
    before = files(copy)
    said = run(reference[1], "--out", copy, "--resume")
    assert "final accuracy" in said and str(copy) in said
    assert run("--out", copy, "--resume", "--quiet") == f"{copy}\n"
    assert files(copy) == before


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("local.lr=0.06", "local.lr is 0.05 there and 0.06 here"),
        ("run.rounds=9", "run.rounds is 4 there and 9 here"),
        ("run.seed=6", "run.seed is 5 there and 6 here"),
        ("method.pull=0.2", "method.pull is 0.1 there and 0.2 here"),
        ("method.name=fedavg", "method.name is 'toy_methods:TwoModels' there"),
        ("evaluate.targets=[0.5]", "evaluate.targets is [] there and [0.5] here"),
    ],
)
def test_another_configuration_is_refused(
    override: str, words: str, reference: Reference, copy: Path, run: Run
) -> None:
    before = files(copy)
    assert words in run(reference[1], override, "--out", copy, "--resume", code=2)
    assert words in run(override, "--out", copy, "--resume", code=2)
    assert files(copy) == before


def test_what_never_changes_a_result_may_change(
    toy_data: Path, tmp_path: Path, reference: Reference, run: Run
) -> None:
    half_done(toy_data, tmp_path / "run")
    changes = ("executor.timeout=99", "executor.workers=1", "checkpoint.every=1")
    said = run(reference[1], *changes, "--out", tmp_path / "run", "--resume")
    assert "from round 3" in said
    assert results(tmp_path / "run") == results(reference[0])


def test_a_run_has_its_own_configuration(
    toy_data: Path, tmp_path: Path, reference: Reference, run: Run
) -> None:
    half_done(toy_data, tmp_path / "run")
    assert "from round 3" in run("--out", tmp_path / "run", "--resume")
    assert results(tmp_path / "run") == results(reference[0])


def test_another_environment_is_refused_unless_inexact_is_fine(
    toy_data: Path, tmp_path: Path, reference: Reference, run: Run
) -> None:
    folder = tmp_path / "run"
    half_done(toy_data, folder)
    rewrite_states(folder, lambda values: values["environment"].update(torch="2.0.1"))
    before = files(folder)
    said = run(reference[1], "--out", folder, "--resume", code=2)
    assert "torch 2.0.1" in said and "--allow-inexact" in said
    assert files(folder) == before
    run(reference[1], "--out", folder, "--resume", "--allow-inexact")
    assert results(folder) == results(reference[0])


def test_a_finished_run_of_an_older_version_gets_what_is_missing(
    reference: Reference, copy: Path, run: Run
) -> None:
    for key in ("best", "origin", "attempt"):
        rewrite_states(copy, lambda values, key=key: values.pop(key))
    for lines in copy.glob("checkpoints/*/metrics.jsonl"):
        lines.unlink()
    shutil.rmtree(copy / "checkpoints" / "best")
    for name in ("model.json", "best.safetensors", "report.html"):
        (copy / name).unlink()
    assert "best round" in run("--out", copy, "--resume")
    assert coterie.load(copy).model("best").state_dict()
    assert coterie.load(copy).history == coterie.load(reference[0]).history
    described = json.loads((copy / "model.json").read_text())["weights"]
    assert described["best"]["round"] == described["last"]["round"] == 3


def test_other_data_are_refused(tmp_path: Path, run: Run) -> None:
    data, folder = toy.write_data(tmp_path / "data.npz"), tmp_path / "run"
    half_done(data, folder)
    toy.write_data(data, train=181)
    before = files(folder)
    assert str(folder) in run("--out", folder, "--resume", code=3)
    assert files(folder) == before
    data.unlink()
    assert str(data) in run("--out", folder, "--resume", code=3)


def flip(path: Path, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def cut(path: Path, generator: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: generator.randrange(path.stat().st_size)])


def swap(path: Path, generator: random.Random) -> None:
    """Put the file of the checkpoint before in its place, and the other way round."""
    other = path.parent.with_name("round_000001") / path.name
    mine = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(mine)


def test_of_a_damaged_checkpoint_the_one_before_is_used(
    reference: Reference, copy: Path, run: Run
) -> None:
    flip(copy / "checkpoints" / "round_000003" / "server.safetensors", random.Random(3))
    said = run(reference[1], "--out", copy, "--resume")
    assert "note: a checkpoint is broken, the one before is used" in said
    assert "round_000003" in said and "from round 3" in said
    assert results(copy) == results(reference[0])
    assert "from round" not in run(reference[1], "--out", copy, "--resume")


@pytest.mark.parametrize("name", CHECKPOINT)
def test_files_swapped_between_all_checkpoints_are_noticed(
    name: str, reference: Reference, copy: Path, run: Run
) -> None:
    swap(copy / "checkpoints" / "round_000003" / name, random.Random(3))
    said = run(reference[1], "--out", copy, "--resume", code=5)
    assert "no checkpoint in" in said and "is valid" in said and "--out" in said


def test_a_damaged_client_state_is_noticed(reference: Reference, copy: Path, run: Run) -> None:
    (state,) = (copy / "clients" / "4").glob("000003.*")
    flip(state, random.Random(1))
    said = run(reference[1], "--out", copy, "--resume")
    assert "note: a checkpoint is broken" in said and str(state.parent) in said
    assert results(copy) == results(reference[0])


def test_damaged_metrics_are_noticed(reference: Reference, copy: Path, run: Run) -> None:
    metrics = copy / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    changed = lines[3].replace('"skipped": false', '"skipped": true ')
    assert changed != lines[3]
    metrics.write_text("".join([*lines[:3], changed]))
    said = run(reference[1], "--out", copy, "--resume")
    assert "metrics.jsonl was missing or damaged, and is restored" in said
    assert "from round" not in said
    assert files(copy) == files(reference[0])
    metrics.write_text("".join(lines[1:]))
    shutil.copy(metrics, copy / "checkpoints" / "round_000003")
    said = run(reference[1], "--out", copy, "--resume")
    assert "metrics.jsonl has changed since it was committed" in said and "from round 3" in said
    assert results(copy) == results(reference[0])


def test_when_no_checkpoint_is_whole_the_run_is_refused(
    reference: Reference, copy: Path, run: Run
) -> None:
    for folder in (copy / "checkpoints").glob("round_*"):
        cut(folder / "server.safetensors", random.Random(1))
    before = files(copy)
    said = run(reference[1], "--out", copy, "--resume", code=5)
    assert "round_000003" in said and "round_000001" in said
    assert files(copy) == before


def test_a_run_that_reached_its_target_is_finished(
    toy_data: Path, tmp_path: Path, run: Run
) -> None:
    targets = {"targets": [0.1, 0.4], "stop_at_target": True}
    toy.run(toy_data, tmp_path / "run", run={"rounds": 30}, evaluate=targets)
    lines = toy.trace(tmp_path / "run")
    assert len(lines) < 30
    assert lines[-1]["metrics"]["accuracy"] >= 0.4
    assert all(line["metrics"]["accuracy"] < 0.4 for line in lines[:-1])
    before = files(tmp_path / "run")
    assert "to accuracy 0.4" in run("--out", tmp_path / "run", "--resume")
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize("by", [toy.Killed, KeyboardInterrupt])
def test_with_neither_evaluation_nor_checkpoints_but_the_last(
    by: type[BaseException], toy_data: Path, tmp_path: Path, run: Run
) -> None:
    rare: dict[str, Any] = {"evaluate": {"every": 0}, "checkpoint": {"every": 0}}
    toy.run(toy_data, tmp_path / "whole", **rare)
    lines = toy.trace(tmp_path / "whole")
    assert ["accuracy" in line["metrics"] for line in lines] == [False, False, False, True]
    kept = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert kept == ["best", "round_000003"]
    with pytest.raises(BaseException, match=r"interrupted|^$"):
        toy.run(toy_data, tmp_path / "run", recorders=[toy.StopAfter(1, by)], **rare)
    said = run("--out", tmp_path / "run", "--resume")
    assert ("from round 2" if by is KeyboardInterrupt else "4 rounds") in said
    assert results(tmp_path / "run") == results(tmp_path / "whole")
