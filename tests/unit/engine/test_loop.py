"""The loop over rounds, with canned replies: skipping, giving up, committing, resuming."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canned import (
    NO_DATA,
    SIZES,
    Canned,
    Fixed,
    Listener,
    Toy,
    by_client,
    by_round,
    fail,
    make_player,
    model,
    value,
    work,
)

from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CheckpointError, RunFailed
from coterie.core.settings import Checkpoint, Cohort, EvaluateSettings
from coterie.core.task import Reply, Task
from coterie.engine.evaluation import Evaluation
from coterie.engine.loop import Loop, Plan
from coterie.engine.record import Event, RoundEvent, StartEvent


def make_loop(
    folder: Path,
    executor: Canned,
    listener: Callable[[Event], None] | None = None,
    *,
    cohort: Cohort | None = None,
    checkpoint: Checkpoint | None = None,
    evaluate: Mapping[str, Any] | None = None,
    attempt: int = 1,
    **changes: Any,
) -> Loop:
    """A loop of four rounds of the toy method; commits after the last one only."""
    plan = Plan(
        cohort or Cohort(),
        checkpoint or Checkpoint(every=0),
        Evaluation(EvaluateSettings(**(evaluate or {})), NO_DATA),
        folder,
        {"torch": "1"},
    )
    player = make_player(folder, executor, listener, **changes)  # type: ignore[arg-type]
    return Loop(plan, player, attempt)


def run(loop: Loop) -> tuple[RoundEvent, ...]:
    loop.run(loop.start())
    return tuple(loop.metrics.read())


def stop_after(round: int, by: type[BaseException] = KeyboardInterrupt) -> Callable[[Event], None]:
    def record(event: Event) -> None:
        if isinstance(event, RoundEvent) and event.round == round:
            raise by

    return record


def committed(folder: Path) -> list[int]:
    return sorted(int(path.name[-6:]) for path in folder.glob("checkpoints/round_*"))


def state_of(folder: Path, round: int) -> dict[str, Any]:
    path = folder / "checkpoints" / f"round_{round:06d}" / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())
    return state


def test_every_round_builds_on_the_one_before(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned())
    standing = loop.run(loop.start())
    assert value(standing.server) == pytest.approx(4 * 70 / 60)
    assert [event.round for event in standing.history] == [0, 1, 2, 3]
    assert standing.position.round == 3 and standing.position.finished
    assert standing.history[-1].digest == standing.server.digest()


def test_a_round_tells_who_was_invited_what_was_sent_and_what_was_measured(tmp_path: Path) -> None:
    scripts = {0: fail("late", "slow"), 2: fail("failed", "a bug")}
    metrics = {1: lambda task: replace(work(task), metrics={"loss": 2.0})}
    first, *_ = run(make_loop(tmp_path, Canned(by_client({**scripts, **metrics}))))
    assert (first.stage, list(first.cohort), first.skipped) == ("train", [1, 2, 0], False)
    assert first.lost == {"0": "late: slow"} and first.rejected == {"2": "failed: a bug"}
    assert first.metrics == {"train_loss": 2.0}
    assert (first.bytes_down, first.bytes_up) == (3 * 4, 4)
    assert first.evaluation_bytes_down == first.evaluation_bytes_up == 0


def test_events_come_in_order_and_are_in_the_file_of_metrics(tmp_path: Path) -> None:
    listener = Listener()
    history = run(make_loop(tmp_path, Canned(), listener))
    start, *_ = listener.events
    assert start == StartEvent(tmp_path, len(SIZES), 0, 4)
    rounds = [event for event in listener.events if isinstance(event, RoundEvent)]
    assert tuple(rounds) == history
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3]


def test_only_the_last_event_is_kept_whole(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned())
    *before, last = loop.run(loop.start()).history
    assert last.cohort and [event.cohort for event in before] == [[], [], []]


def test_a_skipped_round_keeps_the_state(tmp_path: Path) -> None:
    history = run(make_loop(tmp_path, Canned(by_round({1: fail("lost")}))))
    assert [event.skipped for event in history] == [False, True, False, False]
    assert history[0].digest == history[1].digest != history[2].digest


@pytest.mark.parametrize(
    ("cohort", "method"),
    [(Cohort(min_clients=2), Toy()), (Cohort(), Toy(quorum=2))],
    ids=["the table", "the stage"],
)
def test_fewer_valid_replies_than_the_quorum_skip_the_round(
    cohort: Cohort, method: Toy, tmp_path: Path
) -> None:
    two, one = by_client({0: fail("lost")}), by_client({0: fail("lost"), 1: fail("lost")})
    executor = Canned(by_round({0: two, 1: one, 2: two, 3: two}))
    history = run(make_loop(tmp_path, executor, cohort=cohort, method=method))
    assert [event.skipped for event in history] == [False, True, False, False]


def test_a_round_on_the_server_alone_needs_no_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Toy, "server_update", lambda self, ctx, server, replies: model(value(server) + 1)
    )
    executor = Canned()
    loop = make_loop(tmp_path, executor, method=Toy(cohort="none"), cohort=Cohort(min_clients=2))
    standing = loop.run(loop.start())
    assert not executor.tasks and value(standing.server) == 4.0
    assert not any(event.skipped or event.cohort for event in standing.history)


def test_a_required_round_that_would_be_skipped_ends_the_run(tmp_path: Path) -> None:
    executor = Canned(by_round({1: fail("lost", "gone")}))
    loop = make_loop(tmp_path, executor, method=Toy(required=True, quorum=2))
    with pytest.raises(RunFailed, match=r"round 2 \(train\).*gone.*--resume"):
        run(loop)
    assert committed(tmp_path) == [0]  # what was finished before it


def test_three_rounds_in_which_all_clients_diverged_end_the_run(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned(fail("diverged", "its loss is nan")))
    with pytest.raises(RunFailed, match=r"3 rounds.*its loss is nan.*local\.lr"):
        run(loop)
    assert committed(tmp_path) == [2]


def test_a_finite_client_between_them_starts_the_count_of_diverged_rounds_anew(
    tmp_path: Path,
) -> None:
    diverged = fail("diverged")
    executor = Canned(by_round({0: diverged, 1: diverged, 3: diverged}))
    assert [event.skipped for event in run(make_loop(tmp_path, executor))] == [
        True,
        True,
        False,
        True,
    ]


def test_too_many_skipped_rounds_in_a_row_end_the_run(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned(fail("lost", "gone")), cohort=Cohort(max_skipped=2))
    with pytest.raises(RunFailed, match=r"2 rounds.*gone.*max_skipped"):
        run(loop)
    assert committed(tmp_path) == [1]


def test_skipped_rounds_apart_from_each_other_do_not_end_the_run(tmp_path: Path) -> None:
    executor = Canned(by_round({0: fail("lost"), 2: fail("lost")}))
    history = run(make_loop(tmp_path, executor, cohort=Cohort(max_skipped=2)))
    assert [event.skipped for event in history] == [True, False, True, False]


def test_a_run_whose_last_rounds_are_skipped_is_finished(tmp_path: Path) -> None:
    executor = Canned(by_round({2: fail("lost"), 3: fail("lost")}))
    loop = make_loop(tmp_path, executor, cohort=Cohort(max_skipped=2))
    assert loop.run(loop.start()).position.finished


def test_a_run_that_gave_up_starts_its_counts_anew_when_resumed(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned(fail("lost")), cohort=Cohort(max_skipped=2))
    with pytest.raises(RunFailed):
        run(loop)
    state = state_of(tmp_path, 1)
    assert (state["skipped"], state["diverged"], state["finished"]) == (0, 0, False)


@pytest.mark.parametrize(
    ("checkpoint", "rounds"),
    [
        (Checkpoint(every=0), [3]),
        (Checkpoint(every=1, keep=9), [0, 1, 2, 3]),
        (Checkpoint(every=2), [1, 3]),
        (Checkpoint(every=3), [2, 3]),
        (Checkpoint(every=1, keep=2), [2, 3]),
    ],
)
def test_rounds_are_committed_as_often_as_asked_and_at_the_end(
    checkpoint: Checkpoint, rounds: list[int], tmp_path: Path
) -> None:
    run(make_loop(tmp_path, Canned(), checkpoint=checkpoint))
    assert committed(tmp_path) == rounds


def test_a_commit_says_where_the_run_stands(tmp_path: Path) -> None:
    digest = "ab" * 32
    executor = Canned(by_round({3: lambda task: replace(work(task), state=digest)}))
    run(make_loop(tmp_path, executor))
    state = state_of(tmp_path, 3)
    assert (state["round"], state["finished"]) == (3, True)
    assert state["states"] == {str(client): [3, digest] for client in SIZES}
    assert state["metrics_bytes"] == (tmp_path / "metrics.jsonl").stat().st_size
    assert state["environment"] == {"torch": "1"}


def test_states_of_clients_that_were_not_asked_are_those_of_earlier_rounds(tmp_path: Path) -> None:
    def answer(task: Task) -> Reply:
        return replace(work(task), state=f"{task.client}{task.round.index}")

    scripts = by_round({0: answer}, by_client({1: answer}))
    history = run(make_loop(tmp_path, Canned(scripts)))
    assert state_of(tmp_path, 3)["states"] == {"0": [0, "00"], "1": [3, "13"], "2": [0, "20"]}
    assert len({event.states for event in history}) == 4


TARGET: dict[str, Any] = {
    "evaluators": {"fixed": Fixed("accuracy", 0.7)},
    "evaluate": {"targets": (0.2, 0.6), "stop_at_target": True},
}


def test_a_run_that_reached_its_highest_target_is_finished(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned(), **TARGET)
    standing = loop.run(loop.start())
    assert len(standing.history) == 1 and standing.position.finished
    assert committed(tmp_path) == [0]


@pytest.mark.parametrize(
    "evaluate",
    [
        {"targets": (0.2, 0.8), "stop_at_target": True},
        {"targets": (0.6,)},
        {"stop_at_target": True},
        {"targets": (0.6,), "stop_at_target": True, "metric": "other"},
    ],
)
def test_a_run_goes_to_its_end_unless_it_is_to_stop_at_a_target_that_it_reached(
    evaluate: dict[str, Any], tmp_path: Path
) -> None:
    changes = {**TARGET, "evaluate": evaluate}
    assert len(run(make_loop(tmp_path, Canned(), **changes))) == 4


def test_rounds_are_evaluated_as_often_as_asked_and_at_the_end(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**TARGET, "evaluate": {"every": 3}}
    history = run(make_loop(tmp_path, Canned(), **changes))
    assert ["accuracy" in event.metrics for event in history] == [False, False, True, True]


def test_the_objectives_warning_is_said_once(tmp_path: Path) -> None:
    listener = Listener()
    alarmed = lambda task: replace(work(task), metrics={"alarm": 1.0})  # noqa: E731
    run(make_loop(tmp_path, Canned(by_round({1: alarmed, 2: alarmed})), listener))
    (note,) = listener.notes
    assert "round 2" in note and "an alarm" in note


def test_big_arrays_of_the_server_outlive_the_folder_they_were_spooled_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pool(self: Toy, ctx: Any, server: Bundle, replies: Any) -> Bundle:
        rows = ctx.spool("rows", [np.full(3, ctx.round.index)])
        return Bundle(server.tensors, blobs={"rows": rows})

    monkeypatch.setattr(Toy, "server_update", pool)
    loop = make_loop(tmp_path, Canned())
    standing = loop.run(loop.start())
    blob = standing.server.blobs["rows"]
    assert isinstance(blob, Blob) and blob.open().tolist() == [3, 3, 3]
    assert not (tmp_path / "spool").exists()
    names = {path.name for path in (tmp_path / "blobs").iterdir()}
    assert names == {blob.sha256, f"{blob.sha256}.copy"}


def test_every_client_leaves_its_own_model_after_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "personal", lambda self, ctx, down, state: None)
    executor = Canned()
    loop = make_loop(tmp_path, executor)
    standing = loop.run(loop.start())
    loop.write_personal(standing)
    assert executor.asked("personal") == list(SIZES)
    last = executor.tasks[-1]
    assert last.round.index == 3
    assert value(last.down, "evaluated") == value(last.down) == value(standing.server)


def test_a_client_without_a_personal_model_is_named(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned())
    standing = loop.run(loop.start())
    loop.player.executor.answer = by_client({2: fail("failed", "a bug")})  # type: ignore[attr-defined]
    with pytest.raises(RunFailed, match=r"client 2 .*a bug"):
        loop.write_personal(standing)


def test_clients_that_are_spared_stay_without_a_personal_model(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned())
    standing = loop.run(loop.start())
    loop.player.executor.answer = by_client({2: fail("lost", "gone")})  # type: ignore[attr-defined]
    loop.write_personal(standing, spare=("lost",))
    loop.player.executor.answer = by_client({2: fail("failed", "a bug")})  # type: ignore[attr-defined]
    with pytest.raises(RunFailed, match="a bug"):
        loop.write_personal(standing, spare=("lost",))


def test_a_personal_model_that_the_disk_refused_is_the_disk_s_fault(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, Canned())
    standing = loop.run(loop.start())
    loop.player.executor.answer = fail("disk", "cannot write it")  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"client 0 .*cannot write it"):
        loop.write_personal(standing)
