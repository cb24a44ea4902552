"""What once went wrong: each test is one mishap that must not come back."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
from coterie.core.bundle import Bundle
from coterie.core.errors import ConfigError, Interrupted
from coterie.core.task import Reply, Round
from coterie.engine.checkpoints import CheckpointStore
from coterie.engine.cohort import Invited
from coterie.engine.record import Recorders
from coterie.engine.replies import Replies


def test_a_folder_with_files_of_ones_own_is_refused_and_left_alone(
    toy_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine" / "evaluation").mkdir(parents=True)
    (tmp_path / "mine" / "evaluation" / "a.txt").write_text("precious")
    (tmp_path / "mine" / "notes.tmp").write_text("precious")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="is not empty and holds no run"):
            toy.run(toy_data, tmp_path / "mine", resume=resume)
    assert (tmp_path / "mine" / "evaluation" / "a.txt").read_text() == "precious"
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"evaluation", "notes.tmp"}


def test_an_interrupt_in_the_middle_of_a_commit_loses_nothing(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"run": {"rounds": 8}, "checkpoint": {"every": 4, "keep": 1}}
    toy.run(toy_data, tmp_path / "whole", **changes)
    prune = CheckpointStore._prune

    def interrupted(store: CheckpointStore) -> None:
        if store.rounds()[-1] == 3:
            monkeypatch.setattr(CheckpointStore, "_prune", prune)
            raise KeyboardInterrupt
        prune(store)

    monkeypatch.setattr(CheckpointStore, "_prune", interrupted)
    with pytest.raises(Interrupted):
        toy.run(toy_data, tmp_path / "run", **changes)
    toy.run(toy_data, tmp_path / "run", resume=True, **changes)
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "whole")


def test_bytes_for_single_clients_are_counted_beside_those_for_all() -> None:
    place = Round(0, 1, "train", 0, 1, 2, 0)
    replies = Replies(place, Invited((0, 1)), Recorders())
    own = Bundle(scalars={"x": 1})
    replies.count_own(own)
    answers = iter([Reply(0, examples=1), Reply(1, examples=1)])
    list(replies.screen(answers, Bundle(scalars={"a": 1, "b": 2}), {}))
    assert replies.bytes_down == own.nbytes() + 2 * 16


def test_a_test_set_that_ends_in_a_batch_of_one_can_be_normalised_by_batches(
    tmp_path: Path,
) -> None:
    toy.write_data(tmp_path / "toy.npz", train=180, test=257)
    net = {"norm": "bn", "bn_buffers": "local"}
    result = toy.run(tmp_path / "toy.npz", tmp_path / "run", run={"rounds": 1}, net=net)
    assert 0.0 <= result.metrics["accuracy"] <= 1.0


def test_personal_models_are_whole(toy_data: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    net = {"norm": "bn", "bn_buffers": "local"}
    toy.run(toy_data, tmp_path / "run", method={"name": "solo"}, net=net)
    weights = load_file(tmp_path / "run" / "personal" / "0.safetensors")
    means = [weights[name] for name in weights if name.endswith("running_mean")]
    assert len(means) == 2
    assert all(np.abs(mean).max() > 0 for mean in means)


def test_metrics_of_other_kinds_of_numbers_are_sent(toy_data: Path, tmp_path: Path) -> None:
    method = {"name": "toy_methods:Faulty", "fault": "metrics"}
    changes: dict[str, Any] = {"run": {"rounds": 1}, "method": method}
    toy.run(toy_data, tmp_path / "run", **changes)
    (line,) = toy.trace(tmp_path / "run")
    assert line["metrics"]["train_odd"] == 0.5
    assert not line["lost"] and not line["rejected"]


@pytest.mark.slow
def test_memory_that_runs_out_is_tried_again_alone_and_then_lost(
    toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "run": {"rounds": 1},
        "method": {"name": "toy_methods:Faulty", "fault": "memory", "clients": [2]},
        "executor": {"kind": "processes", "workers": 2},
    }
    toy.run(toy_data, tmp_path / "run", **changes)
    (line,) = toy.trace(tmp_path / "run")
    assert list(line["lost"]) == ["2"]
    assert line["lost"]["2"].startswith("lost: out of memory with ")


def test_text_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from coterie.cli.progress import Display
    from coterie.engine.record import NoteEvent

    Display(Console(width=200))(NoteEvent("client 1 failed: [/data/x] [enforce fail]"))
    assert "[/data/x] [enforce fail]" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupt_while_threads_are_started_is_an_interrupt(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, calls = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        if "_feed" in thread.name:
            calls.append(thread)
            if len(calls) == 6:  # the second thread of the third call of the executor
                raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    executor = {"kind": "processes", "workers": 2}
    with pytest.raises(Interrupted):
        toy.run(toy_data, tmp_path / "run", executor=executor)
    monkeypatch.undo()
    toy.run(toy_data, tmp_path / "run", resume=True, executor=executor)
    toy.run(toy_data, tmp_path / "whole")
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "whole")
