"""Values by client in the record of a round."""

from pathlib import Path
from typing import Any

import pytest
from canned import Canned, Fixed, FixedOnClients, add
from test_loop import make_loop, run

from coterie.core.task import Reply, Task

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
