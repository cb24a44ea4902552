"""A finished run is measured again from its files: its own values, or other evaluators."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie
import toy
from coterie.core.errors import ConfigError, CoterieError, DataError
from coterie.engine.record import Event, NoteEvent
from coterie.experiment.evaluate import evaluate

SIMSIAM: dict[str, Any] = {"objective": {"name": "simsiam", "hidden": 8}}
OF_RESUMING = ("clients", "checkpoints", "blobs", "spool", "evaluation")


def start(data: Path, folder: Path, **changes: Any) -> None:
    """Run the toy configuration, with views of each sample that differ."""
    tables = toy.tables(data, **{"run": {"rounds": 2}, **changes})
    tables["data"]["augment"] = "own_parts:Shade"
    coterie.run(tables, out=folder)


def last_metrics(folder: Path) -> dict[str, float]:
    metrics: dict[str, float] = toy.trace(folder)[-1]["metrics"]
    return metrics


def strip(folder: Path) -> None:
    """Leave only what evaluating again may need."""
    for name in OF_RESUMING:
        shutil.rmtree(folder / name, ignore_errors=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FedAvg without its checkpoints; tests do not change it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    toy.run(toy_data, folder, run={"rounds": 2})
    strip(folder)
    return folder


CASES: dict[str, dict[str, Any]] = {
    "supervised": {"evaluate": {"with": ["accuracy", "personal"], "last": ["ccvr"]}},
    "simsiam": {**SIMSIAM, "evaluate": {"with": ["knn", "probe", "federated_probe"]}},
    "per_ssfl": {
        **SIMSIAM,
        "method": {"name": "per_ssfl"},
        "evaluate": {"with": ["knn", "own_probe"]},
    },
    "la_ssfl": {**SIMSIAM, "method": {"name": "la_ssfl"}, "evaluate": {"with": ["own_probe"]}},
    "solo": {"method": {"name": "solo"}, "evaluate": {"with": ["accuracy", "personal", "knn"]}},
    "centralized": {"method": {"name": "centralized"}, "evaluate": {"with": ["accuracy"]}},
    "kept statistics": {
        "net": {"norm": "bn", "bn_buffers": "local"},
        "evaluate": {"with": ["accuracy", "personal"]},
    },
    "kept target": {
        **SIMSIAM,
        "objective": {"name": "byol", "hidden": 8},
        "evaluate": {"with": ["knn", "own_probe"]},
    },
    "stopped early": {
        "run": {"rounds": 4},
        "evaluate": {"with": ["accuracy"], "targets": [0.01], "stop_at_target": True},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_evaluators_of_the_run_give_its_last_values_again(
    case: str, toy_data: Path, tmp_path: Path, short_probes: None
) -> None:
    folder = tmp_path / "run"
    start(toy_data, folder, **CASES[case])
    strip(folder)
    before, last = files(folder), last_metrics(folder)
    metrics = evaluate(folder)
    assert metrics and metrics == {name: last[name] for name in metrics}
    trained = ("train_", "server_")
    assert {name for name in last if not name.startswith(trained)} == metrics.keys()
    assert files(folder) == before


def test_workers_give_the_same_values(finished: Path) -> None:
    changes = {"executor": {"kind": "processes", "workers": 2}}
    assert evaluate(finished, changes) == evaluate(finished)


def test_other_evaluators_replace_those_of_the_run(finished: Path) -> None:
    metrics = evaluate(finished, {"evaluate.with": "probe"})
    assert "probe" in metrics and "accuracy" not in metrics
    assert "knn" in evaluate(finished, {"evaluate.last": ["knn"]})


def test_data_that_have_moved_are_named(toy_data: Path, tmp_path: Path) -> None:
    there = shutil.copy(toy_data, tmp_path / "old.npz")
    toy.run(Path(there), tmp_path / "run", run={"rounds": 1})
    moved = Path(there).rename(tmp_path / "new.npz")
    with pytest.raises(DataError, match=r"data\.root"):
        evaluate(tmp_path / "run")
    metrics = evaluate(tmp_path / "run", {"data": {"root": str(moved)}})
    assert metrics["accuracy"] == last_metrics(tmp_path / "run")["accuracy"]


def test_other_data_are_refused(finished: Path, tmp_path: Path) -> None:
    other = toy.write_data(tmp_path / "other.npz", test=30)
    with pytest.raises(DataError, match=r"not the data.*data\.root"):
        evaluate(finished, {"data.root": str(other)})


@pytest.mark.parametrize(
    "changes",
    [{"local.lr": 0.1}, {"rounds": 9}, {"data.limit": 20}, {"net": {"projection": 4}}],
)
def test_keys_of_training_are_refused_by_name(changes: dict[str, Any], finished: Path) -> None:
    (name,) = changes
    key = {"rounds": "run.rounds", "net": "net.projection"}.get(name, name)
    with pytest.raises(ConfigError, match=rf"{key}.*evaluate\.\*") as raised:
        evaluate(finished, changes)
    assert "\n" not in str(raised.value)


def test_an_evaluator_without_its_head_is_refused(toy_data: Path, tmp_path: Path) -> None:
    start(toy_data, tmp_path, evaluate={"with": ["knn"]}, **SIMSIAM)
    with pytest.raises(ConfigError, match="classifier"):
        evaluate(tmp_path, {"evaluate.with": ["accuracy"]})


def test_an_unfinished_run_is_refused_with_the_command_that_resumes_it(
    toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(toy.Killed):
        toy.run(toy_data, tmp_path, recorders=[toy.StopAfter(0, toy.Killed)])
    with pytest.raises(ConfigError, match=rf"coterie run --out {tmp_path} --resume"):
        evaluate(tmp_path)


def overwrite(folder: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    (folder / file).write_bytes(change((folder / file).read_bytes()))


@pytest.mark.parametrize("file", ["model.safetensors", "config.toml", "partition.json"])
def test_a_damaged_file_is_named(file: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    overwrite(tmp_path / "run", file, lambda data: data[: len(data) // 2] + b"?")
    with pytest.raises(CoterieError, match=file) as raised:
        evaluate(tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_a_damaged_personal_model_is_named(toy_data: Path, tmp_path: Path) -> None:
    toy.run(toy_data, tmp_path, run={"rounds": 1}, method={"name": "solo"})
    overwrite(tmp_path, "personal/2.safetensors", lambda data: data[:-1] + b"?")
    with pytest.raises(DataError, match=r"personal/2\.safetensors"):
        evaluate(tmp_path)


def test_arrays_of_a_python_program_are_not_kept(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    overwrite(tmp_path / "run", "config.toml", lambda data: data.replace(b'"arrays"', b'"given"'))
    with pytest.raises(DataError, match="score"):
        evaluate(tmp_path / "run")


def test_notes_reach_the_recorders(finished: Path) -> None:
    events: list[Event] = []
    changes = {"evaluate": {"with": "knn", "metric": "train_steps", "targets": [0.5]}}
    evaluate(finished, changes, [events.append])
    notes = [event.text for event in events if isinstance(event, NoteEvent)]
    assert any("'train_steps' is not measured" in text for text in notes)


def test_a_run_without_a_line_of_metrics_is_measured_after_its_last_round(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    last = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert evaluate(tmp_path / "run")["accuracy"] == last["metrics"]["accuracy"]
