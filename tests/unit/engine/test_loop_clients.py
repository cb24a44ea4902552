"""Values by client in the record of a round."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from canned import Canned, Fixed, FixedOnClients, add
from test_loop import make_loop, run

from coterie.core.bundle import Bundle
from coterie.core.task import Failure, Reply, Task
from coterie.data.partition import Partition
from coterie.engine.client_states import StateStore
from coterie.engine.cohort import draw_unseen, keeps_confusion, list_clients, split_unseen

EVALUATORS = {"own": FixedOnClients(), "fixed": Fixed("accuracy", 0.7)}


def answer(task: Task) -> Reply:
    if task.op == "update":
        return Reply(task.client, add(task.down, 1), 1)
    return Reply(task.client, examples=1, metrics={"own/score": task.client / 10})


def executor(clients: int) -> Canned:
    return Canned(answer, sizes=dict.fromkeys(range(clients), 1), tests={0: 1, 1: 1})


def test_every_evaluated_round_has_them(tmp_path: Path) -> None:
    history = run(make_loop(tmp_path, executor(2), evaluators=EVALUATORS, evaluate={"every": 3}))
    measured = {"0": {"score": 0.0}, "1": {"score": 0.1}}
    assert [event.clients for event in history] == [{}, {}, measured, measured]


@pytest.mark.parametrize(
    ("evaluate", "rounds"),
    [({}, 4), ({"stop_at_target": True, "targets": (0.6,)}, 1), ({"patience": 2}, 3)],
)
def test_with_many_clients_only_the_last_round_has_them(
    evaluate: dict[str, Any], rounds: int, tmp_path: Path
) -> None:
    loop = make_loop(tmp_path, executor(101), evaluators=EVALUATORS, evaluate=evaluate)
    history = run(loop)
    assert [bool(event.clients) for event in history] == [False] * (rounds - 1) + [True]


@pytest.mark.parametrize("remote", [False, True])
def test_a_state_whose_reply_was_lost_is_committed_with_its_digest(
    remote: bool, tmp_path: Path
) -> None:
    kept = Bundle({"memory": {"m": torch.ones(1)}})

    def lose(task: Task) -> Reply:
        if task.client == 1 and task.round.index == 2:  # it saves its state, then it is too late
            StateStore(tmp_path / "clients").save(1, 2, task.attempt, kept)
            return Reply(1, error=Failure("late", "no answer"))
        return answer(task)

    clients = Canned(lose, sizes={0: 1, 1: 1})
    loop = make_loop(tmp_path, clients)
    loop.plan = replace(loop.plan, remote=remote)
    standing = loop.run(loop.start())
    assert standing.position.states == ({} if remote else {1: (2, kept.digest())})


def count(task: Task) -> Reply:
    reply = answer(task)
    if task.op == "update":
        return reply
    matrix = torch.tensor([[1, task.client], [0, 0]])
    return Reply(task.client, Bundle({"confusion": {"own": matrix}}), 1, reply.metrics)


@pytest.mark.parametrize("evaluate", [{}, {"stop_at_target": True, "targets": (0.6,)}])
def test_the_line_of_the_last_round_counts_classes_also_where_the_run_ends_early(
    evaluate: dict[str, Any], tmp_path: Path
) -> None:
    clients = Canned(count, sizes={0: 1, 1: 2}, tests={0: 1, 1: 1})
    *before, last = run(make_loop(tmp_path, clients, evaluators=EVALUATORS, evaluate=evaluate))
    assert not any(event.confusion or event.client_confusion for event in before)
    assert last.confusion == [[2, 1], [0, 0]] and last.recall == {"0": 2 / 3}
    assert last.client_confusion == {"0": [[1, 0], [0, 0]], "1": [[1, 1], [0, 0]]}
    assert last.evaluation_bytes_up == 2 * 4 * 8


def test_with_many_clients_classes_are_counted_for_all_together(tmp_path: Path) -> None:
    clients = Canned(count, sizes=dict.fromkeys(range(101), 1), tests={0: 1, 1: 1})
    *_, last = run(make_loop(tmp_path, clients, evaluators=EVALUATORS))
    assert last.confusion == [[2, 1], [0, 0]] and not last.client_confusion
    assert keeps_confusion(100, 10) and not keeps_confusion(101, 2) and not keeps_confusion(11, 100)


def test_only_clients_with_test_samples_are_drawn_to_be_unseen() -> None:
    train = {client: np.arange(5) for client in range(6)}
    clients = list_clients(Partition(train, {1: np.arange(2), 4: np.arange(3), 5: np.arange(1)}))
    drawn = {draw_unseen(clients, 2, seed) for seed in range(30)}
    assert drawn == {(1, 4), (1, 5), (4, 5)}
    assert draw_unseen(clients, 2, 3) == draw_unseen(reversed(clients), 2, 3)
    trained, unseen = split_unseen(clients, (1, 4))
    assert [info.id for info in trained] == [0, 2, 3, 5] and [i.id for i in unseen] == [1, 4]
