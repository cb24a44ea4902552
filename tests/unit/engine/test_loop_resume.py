"""The loop when it is interrupted, and when it resumes."""

from pathlib import Path

import pytest
from canned import (
    Canned,
    Listener,
    by_round,
    fail,
    model,
    work,
)
from test_loop import committed, make_loop, run, state_of, stop_after

from coterie.core.bundle import Bundle
from coterie.core.errors import CheckpointError
from coterie.core.settings import Checkpoint
from coterie.core.task import Reply, Task
from coterie.engine.checkpoints import CheckpointStore, Position
from coterie.engine.loop import Standing
from coterie.engine.record import StartEvent


@pytest.mark.parametrize("round", [0, 2])
def test_an_interrupt_commits_the_last_finished_round(round: int, tmp_path: Path) -> None:
    def answer(task: Task) -> Reply:
        if task.round.index == round + 1:
            raise KeyboardInterrupt
        return work(task)

    with pytest.raises(KeyboardInterrupt):
        run(make_loop(tmp_path, Canned(answer)))
    assert committed(tmp_path) == [round]
    assert not state_of(tmp_path, round)["finished"]


def test_an_interrupt_before_the_first_round_is_finished_commits_nothing(tmp_path: Path) -> None:
    def answer(task: Task) -> Reply:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_loop(tmp_path, Canned(answer)))
    assert not committed(tmp_path)


def test_a_round_whose_recording_was_interrupted_is_not_committed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(make_loop(tmp_path, Canned(), stop_after(2)))
    assert committed(tmp_path) == [1]
    lines = (tmp_path / "metrics.jsonl").read_bytes()
    assert state_of(tmp_path, 1)["metrics_bytes"] == len(lines)  # the line of round 2 is gone
    assert len(lines.splitlines()) == 2


def test_an_interrupt_in_the_middle_of_a_commit_leaves_that_commit_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = CheckpointStore.commit

    def interrupted(store: CheckpointStore, server: Bundle, position: Position) -> None:
        commit(store, server, position)
        raise KeyboardInterrupt  # before it returns, all of it on the disk

    monkeypatch.setattr(CheckpointStore, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(make_loop(tmp_path, Canned(), checkpoint=Checkpoint(every=2)))
    assert committed(tmp_path) == [1]
    size = (tmp_path / "metrics.jsonl").stat().st_size
    assert state_of(tmp_path, 1)["metrics_bytes"] == size


def test_a_disk_that_fails_ends_the_run_without_a_commit(tmp_path: Path) -> None:
    executor = Canned(by_round({2: fail("disk", "the disk is full")}))
    with pytest.raises(CheckpointError, match="the disk is full"):
        run(make_loop(tmp_path, executor))
    assert not committed(tmp_path)


def test_a_resumed_run_plays_the_rounds_that_are_left(tmp_path: Path) -> None:
    whole = make_loop(tmp_path / "whole", Canned())
    (tmp_path / "whole").mkdir()
    expected = whole.run(whole.start())
    (tmp_path / "run").mkdir()
    interrupted = make_loop(tmp_path / "run", Canned(), checkpoint=Checkpoint(every=2))
    interrupted.rounds = interrupted.rounds[:2]
    half = interrupted.run(interrupted.start())
    listener, executor = Listener(), Canned()
    resumed = make_loop(tmp_path / "run", executor, listener, attempt=2)
    standing = resumed.run(half)
    assert [task.round.index for task in executor.tasks] == [2] * 3 + [3] * 3
    assert standing.server.digest() == expected.server.digest()
    assert [event.digest for event in standing.history] == [e.digest for e in expected.history]
    (start,) = (event for event in listener.events if isinstance(event, StartEvent))
    assert (start.first, start.total) == (2, 4)


def test_tasks_know_the_attempt_its_first_round_and_the_checkpoints_that_are_kept(
    tmp_path: Path,
) -> None:
    executor = Canned()
    loop = make_loop(tmp_path, executor, checkpoint=Checkpoint(every=1), attempt=3)
    run(loop)
    attempts = [task.attempt for task in executor.tasks if task.client == 0]
    assert {attempt.number for attempt in attempts} == {3}
    assert {attempt.first for attempt in attempts} == {0}
    assert [attempt.kept for attempt in attempts] == [(), (0,), (0, 1), (1, 2)]


def test_a_finished_run_is_not_played_further(tmp_path: Path) -> None:
    executor = Canned()
    loop = make_loop(tmp_path, executor)
    finished = Standing(model(5.0), Position(round=1, finished=True), ())
    assert loop.run(finished) is finished
    assert not executor.tasks
