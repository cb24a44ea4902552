"""Starting and resuming a run: what is refused, what is left, what is made again."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
import own_parts
import toy
from coterie.core.errors import CheckpointError, ConfigError, Interrupted, RunFailed
from coterie.core.task import ClientInfo, Executor, Reply, Task
from coterie.engine.record import NoteEvent
from coterie.experiment import run as module
from coterie.experiment.config import load
from coterie.experiment.given import divide_sites
from coterie.experiment.model_file import SavedWeights, read_model_file
from coterie.experiment.prepare import Experiment, make_executor
from coterie.experiment.result import Result
from coterie.experiment.run import default_folder, execute
from coterie.reproduce.plan import is_finished

SITES = {"north": (np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]))}
TABLES: dict[str, Any] = {
    "run": {"rounds": 2, "seed": 3},
    "data": {"name": "given"},
    "method": {"name": "toy_methods:TwoModels"},
    "net": {"backbone": "mlp", "norm": "none", "projection": 2},
    "local": {"batch_size": 4},
    "evaluate": {"with": ["accuracy"]},
    "executor": {"kind": "serial"},
    "checkpoint": {"every": 1},
}


class Watched:
    """An executor that tells whether it was closed, and may be interrupted in a round."""

    def __init__(self, inside: Executor, interrupted: int, error: BaseException) -> None:
        self.inside, self.interrupted, self.closed = inside, interrupted, False
        self.error = error

    def clients(self) -> Sequence[ClientInfo]:
        return self.inside.clients()

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            if task.round.index == self.interrupted:
                raise self.error
            yield from self.inside.run([task])

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Watched]]:
    """Have executors watched from now on, and interrupted in a round if it is given."""
    made: list[Watched] = []

    def watch(interrupted: int = -1, error: BaseException | None = None) -> list[Watched]:
        def make(experiment: Experiment, note: Callable[[str], None]) -> Watched:
            inside, raised = make_executor(experiment, note), error or KeyboardInterrupt()
            made.append(Watched(inside, interrupted, raised))
            return made[-1]

        monkeypatch.setattr(module, "make_executor", make)
        return made

    return watch


def start(folder: Path, resume: bool = False) -> Result:
    """Run a method with personal models for two rounds on one site with four samples."""
    given = divide_sites(SITES, SITES["north"], seed=3)
    return execute(load(TABLES, {}), folder, resume, given=given)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    start(folder)
    return folder


@pytest.fixture
def finished(reference: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(reference, tmp_path / "run")
    return tmp_path / "run"


def files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if path.name not in (".lock", ".attempt")  # these tell of the last start
    }


def test_a_run_leaves_its_configuration_its_partition_its_models_and_a_report(
    tmp_path: Path, executors: Any
) -> None:
    made = executors()
    result = start(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "partition.json", "metrics.jsonl", "report.html"} <= names
    assert {"model.safetensors", "best.safetensors", "model.json", "personal"} <= names
    assert [event.round for event in result.history] == [0, 1]
    assert result.metrics == result.history[-1].metrics
    assert made[0].closed


def test_an_interrupt_closes_the_executor_and_names_the_folder(
    tmp_path: Path, executors: Any
) -> None:
    made = executors(1)
    with pytest.raises(Interrupted, match=rf"{tmp_path / 'run'}.*--resume"):
        start(tmp_path / "run")
    assert made[0].closed
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_resumed_run_comes_to_the_same_models(
    reference: Path, tmp_path: Path, executors: Any
) -> None:
    executors(1)
    with pytest.raises(Interrupted):
        start(tmp_path / "run")
    executors()
    start(tmp_path / "run", resume=True)
    assert toy.outputs(tmp_path / "run") == toy.outputs(reference)


def test_a_run_that_fails_leaves_a_page_with_the_reason_and_can_be_resumed(
    reference: Path, tmp_path: Path, executors: Any
) -> None:
    folder = tmp_path / "run"
    executors(1, RunFailed("nobody <answered>"))
    with pytest.raises(RunFailed, match="nobody"):
        start(folder)
    page = (folder / "report.html").read_text()
    assert "ended before its last round.</b> nobody &lt;answered&gt;</p>" in page
    assert not is_finished(folder)
    executors(1)
    with pytest.raises(Interrupted):
        start(folder, resume=True)
    assert not (folder / "report.html").exists()  # the reason was of another attempt
    executors()
    start(folder, resume=True)
    assert is_finished(folder)
    assert toy.outputs(folder) == toy.outputs(reference)


def test_a_run_that_fails_in_its_first_round_has_no_page(tmp_path: Path, executors: Any) -> None:
    executors(0, RunFailed("nobody answered"))
    with pytest.raises(RunFailed, match="nobody answered"):
        start(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_finished_run_is_left_as_it_is_and_starts_no_executor(
    finished: Path, executors: Any
) -> None:
    before, made = files(finished), executors()
    assert [event.round for event in start(finished, resume=True).history] == [0, 1]
    assert files(finished) == before and not made


@pytest.mark.parametrize(
    "lost", ["model.safetensors", "best.safetensors", "model.json", "report.html", "personal"]
)
def test_outputs_that_are_missing_are_made_again_without_a_round(
    lost: str, finished: Path, tmp_path: Path, executors: Any
) -> None:
    before = toy.outputs(finished)
    (finished / lost).rename(tmp_path / "away")
    made = executors(0)  # a task of a round would be interrupted
    start(finished, resume=True)
    assert toy.outputs(finished) == before and (finished / "report.html").is_file()
    assert made[0].closed


def replace_output(folder: Path, name: str, how: str) -> None:
    """Empty an output of a run, change a bit of it, or take that of a run with another seed."""
    path = folder / name
    if how == "emptied":
        path.write_bytes(b"")
    elif how == "changed":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        shutil.copy(folder.parent / "other" / name, path)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with another seed."""
    folder = tmp_path_factory.mktemp("other") / "run"
    given = divide_sites(SITES, SITES["north"], seed=3)
    execute(load({**TABLES, "run": {"rounds": 2, "seed": 4}}, {}), folder, given=given)
    return folder


def watch_notes(folder: Path) -> list[str]:
    """Resume a run and return its notes."""
    notes: list[str] = []
    given = divide_sites(SITES, SITES["north"], seed=3)
    listen = [lambda event: notes.append(event.text) if isinstance(event, NoteEvent) else None]
    execute(load(TABLES, {}), folder, resume=True, given=given, recorders=listen)
    return notes


OUTPUTS = ["model.safetensors", "best.safetensors", "model.json", "report.html"]


@pytest.mark.parametrize("how", ["emptied", "changed", "of another run"])
@pytest.mark.parametrize("name", [*OUTPUTS, "personal/north.safetensors", "metrics.jsonl"])
def test_outputs_that_are_damaged_are_noticed_and_restored(
    name: str, how: str, finished: Path, other: Path, executors: Any
) -> None:
    shutil.copytree(other, finished.parent / "other")
    before = files(finished)
    replace_output(finished, name, how)
    assert files(finished) != before
    executors(0)  # a task of a round would be interrupted
    notes = watch_notes(finished)
    assert any(name in note for note in notes), notes
    after = files(finished)
    assert {k: v for k, v in after.items() if k != "report.html"} == {
        k: v for k, v in before.items() if k != "report.html"
    }
    assert not watch_notes(finished)


@pytest.mark.parametrize("name", [*OUTPUTS, "personal/north.safetensors"])
def test_without_checkpoints_outputs_that_are_damaged_are_refused(
    name: str, finished: Path
) -> None:
    shutil.rmtree(finished / "checkpoints")
    before = files(finished)
    assert not watch_notes(finished)
    assert files(finished) == before
    replace_output(finished, name, "changed" if name != "model.json" else "emptied")
    before = files(finished)
    with pytest.raises(CheckpointError, match=rf"{finished / name} .*no checkpoint.*--out"):
        watch_notes(finished)
    assert files(finished) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [('"metric": "accuracy"', '"metric": "accuracx"'), ('"own_nets"', '"own_nett"')],
)
def test_any_change_of_the_description_is_noticed(
    before: str, after: str, finished: Path, executors: Any
) -> None:
    path = finished / "model.json"
    text = path.read_text()
    path.write_text(text.replace(before, after))
    assert path.read_text() != text
    executors(0)
    (note,) = watch_notes(finished)
    assert f"{path} cannot be used: it was changed" in note and path.read_text() == text


def test_a_description_from_the_start_of_a_run_is_noticed_at_its_end(finished: Path) -> None:
    described = read_model_file(finished)
    replace(described, weights=SavedWeights()).write(finished)
    (note,) = watch_notes(finished)
    assert "model.json names no weights" in note and read_model_file(finished) == described


def test_model_weights_and_description_of_another_run_together_are_noticed(
    finished: Path, other: Path
) -> None:
    before = toy.outputs(finished)
    for name in ("model.safetensors", "best.safetensors", "model.json"):
        shutil.copy(other / name, finished / name)
    shutil.copytree(other / "personal", finished / "personal", dirs_exist_ok=True)
    (note,) = watch_notes(finished)
    assert f"{finished / 'model.safetensors'} is not of this run" in note
    assert toy.outputs(finished) == before


def test_a_folder_with_a_run_needs_to_be_resumed(finished: Path) -> None:
    before = files(finished)
    with pytest.raises(ConfigError, match=rf"{finished}.*--resume"):
        start(finished)
    assert files(finished) == before


def test_resuming_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"--resume.*--out"):
        execute(load(TABLES, {}), resume=True)


def test_a_run_that_is_resumed_without_a_configuration_has_its_own(tmp_path: Path) -> None:
    saved = load("digits/fedprox", {"run.seed": 9})
    (tmp_path / "config.toml").write_text(saved.to_toml())
    assert load(None, {}, tmp_path / "config.toml").tables == saved.tables
    assert load(None, {}, tmp_path / "config.toml").name == tmp_path.name
    assert load(None, {}).name == "digits/moon"
    assert load("digits/fedavg", {}, tmp_path / "config.toml").name == "digits/fedavg"


@pytest.mark.parametrize(
    ("changes", "data", "stem"),
    [
        ({}, "", "moon-digits"),
        ({"method": "fedavg", "objective": "byol", "net.projection": 8}, "", "fedavg-byol-digits"),
        ({"method": "toy_methods:TwoModels"}, "3-sites", "twomodels-3-sites"),
        ({"data": own_parts.two_sites}, "", "moon-two-sites"),
    ],
)
def test_a_default_folder_is_named_by_method_objective_data_and_time(
    changes: dict[str, Any], data: str, stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, "strftime", lambda form: "20300102-030405")
    assert default_folder(load(None, changes), data) == Path(f"runs/{stem}-20300102-030405")


def test_a_default_folder_is_always_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, "strftime", lambda form: "20300102-030405")
    first = default_folder(load(None, {}))
    first.mkdir(parents=True)
    second = default_folder(load(None, {}))
    assert second != first and not second.exists()


def test_arrays_of_sites_give_a_folder_its_name_and_their_call_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executors: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = {name: table for name, table in TABLES.items() if name not in ("data", "method")}
    test = SITES["north"]
    result = coterie.fit(SITES, test=test, **tables)
    assert re.fullmatch(r"runs/fedavg-1-sites-\d{8}-\d{6}", str(result.folder))
    executors(1)
    with pytest.raises(Interrupted, match=r'coterie\.fit\(\.\.\., out="here", resume=True\)'):
        coterie.fit(SITES, test=test, out="here", **tables)
    described = r'here is not finished.*coterie\.fit\(\.\.\., out="here", resume=True\)'
    with pytest.raises(ConfigError, match=described):
        coterie.load("here").model()


def test_an_interrupt_in_python_names_the_function_that_resumes_it(
    toy_data: Path, tmp_path: Path, executors: Any
) -> None:
    executors(1)
    with pytest.raises(Interrupted, match=r'coterie\.run\(\.\.\., out=".*", resume=True\)'):
        toy.run(toy_data, tmp_path / "run")
