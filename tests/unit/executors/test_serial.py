"""The reference executor: one task after the other, when its reply is asked for."""

from typing import Any, cast

import numpy as np

from coterie.core.bundle import Bundle
from coterie.core.task import ClientInfo, Reply, Round, Task
from coterie.data.partition import Partition
from coterie.engine.site import Site
from coterie.executors.serial import Serial

ROUND = Round(0, 1, "train", 0, 1, 3, seed=7)


class Echo:
    """A site that answers with the number of the client."""

    partition = Partition({0: np.arange(5), 1: np.arange(5, 7)}, {1: np.arange(3)}, ("a", "b"))

    def __init__(self) -> None:
        self.done: list[int] = []

    def run(self, task: Task) -> Reply:
        self.done.append(task.client)
        return Reply(task.client)


def make() -> tuple[Serial, Echo]:
    site: Any = Echo()
    return Serial(cast(Site, site)), site


def test_clients_are_those_of_the_sites_partition() -> None:
    serial, _ = make()
    assert serial.clients() == [ClientInfo(0, "a", 5, 0), ClientInfo(1, "b", 2, 3)]


def test_a_task_is_drawn_and_done_when_its_reply_is_asked_for() -> None:
    serial, site = make()
    drawn = []

    def tasks() -> Any:
        for client in (1, 0):
            drawn.append(client)
            yield Task("update", client, ROUND, Bundle())

    replies = iter(serial.run(tasks()))
    assert (drawn, site.done) == ([], [])
    assert next(replies).client == 1
    assert (drawn, site.done) == ([1], [1])
    assert [reply.client for reply in replies] == [0]


def test_it_can_be_closed_twice_and_used_again() -> None:
    serial, _ = make()
    serial.close()
    serial.close()
    assert [reply.client for reply in serial.run([Task("update", 0, ROUND, Bundle())])] == [0]
