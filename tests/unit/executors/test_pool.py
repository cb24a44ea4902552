"""What only workers elsewhere need of the pool: no room for one, nodes that are gone."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from coterie.core.bundle import Bundle
from coterie.core.errors import RunFailed
from coterie.core.task import Reply, Round, Task
from coterie.executors import wire
from coterie.executors.pool import Ending, NoRoom, Pool

DOWN = Bundle({"model": {"w": torch.tensor([1.0])}})


def task(client: int) -> Task:
    return Task("update", client, Round(0, 1, "train", 0, 1, 3, seed=7), DOWN)


@dataclass
class Scripted:
    """A worker that has room, or not, and lives as long as it is told."""

    room: Callable[[], bool] = lambda: True
    dies: bool = False
    ending: Ending = field(default_factory=lambda: Ending("a reason"))
    done: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        if not self.room():
            raise NoRoom("the cluster has no room")

    def ask(self, task: Task, broadcast: str, deadline: float | None) -> Reply:
        if self.dies:
            raise wire.Closed("gone")
        self.done.append(task.client)
        return Reply(task.client)

    def kill(self) -> None:
        pass

    def end(self) -> Ending:
        return self.ending


def pool(*workers: Scripted) -> Pool[str]:
    waiting = list(workers)
    return Pool(
        len(workers) if len(workers) < 4 else 1,
        lambda slot: waiting.pop(0),
        lambda down: "encoded",
        lambda task: 1,
    )


def test_tasks_of_a_worker_without_room_are_done_by_the_others_until_it_has_some() -> None:
    has_room = threading.Event()
    absent, present = Scripted(has_room.is_set), Scripted()
    shared = pool(absent, present)
    assert [reply.client for reply in shared.run(map(task, range(6)))] == list(range(6))
    assert sorted(present.done) == list(range(6)) and not absent.done
    has_room.set()
    present.room = lambda: False
    assert [reply.client for reply in shared.run(map(task, range(3)))] == [0, 1, 2]
    assert sorted(absent.done) == [0, 1, 2]


def test_without_room_for_any_worker_the_run_ends_with_the_reason() -> None:
    none = Scripted(lambda: False), Scripted(lambda: False)
    with pytest.raises(RunFailed, match="no room"):
        list(pool(*none).run(map(task, range(3))))


@pytest.mark.parametrize("alone", [True, False])
def test_a_task_is_repeated_alone_only_if_memory_may_have_run_out(alone: bool) -> None:
    entered: list[bool] = []
    dead = Scripted(dies=True, ending=Ending("its node is gone", alone=alone))
    shared = pool(dead, dead, dead, dead, Scripted())
    enter = shared._gate.enter
    shared._gate.enter = lambda alone: entered.append(alone) or enter(alone)  # type: ignore
    (reply,) = shared.run([task(0)])
    assert entered == [False, alone, alone]
    assert reply.error is not None and "3 times (its node is gone)" in reply.error.reason
