"""The server's executor over a link: refusals, and how it ends a run.

Tasks and replies are in test_server.py.
"""

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from coterie.core.bundle import Bundle
from coterie.core.task import ClientInfo, Round, Task
from coterie.deploy.executor import RemoteSites
from coterie.deploy.link import MemoryLink, Message


class Prompt(MemoryLink):
    """A link whose clients have all answered by the time the server looks."""

    def send(self, messages: Sequence[Message]) -> list[str]:
        ids = super().send(messages)
        for id, message in zip(ids, messages, strict=True):
            self.put(Message(message.peer, "bye", {}, b"", id))
        return ids


class Silent(MemoryLink):
    """A link on which nobody answers."""

    def receive(self, ids: Collection[str]) -> list[Message]:
        return []


def end(link: MemoryLink, folder: Path, grace: float) -> float:
    """End a run of three connected clients; return the seconds that took."""
    names = ("amiens", "berlin", "cadiz")
    for name in names:
        link.connect(name)
    clients = [ClientInfo(number, name, 10) for number, name in enumerate(names)]
    remote = RemoteSites(link, clients, lambda _: {}, folder, run="a", states={}, grace=grace)
    begin = time.monotonic()
    remote.end("the run is finished")
    return time.monotonic() - begin


def test_a_run_ends_as_soon_as_all_clients_know(tmp_path: Path) -> None:
    assert end(Prompt(), tmp_path, grace=30.0) < 5.0


def test_clients_that_do_not_answer_are_waited_for_no_longer_than_the_grace(tmp_path: Path) -> None:
    assert 0.2 <= end(Silent(), tmp_path, grace=0.2) < 5.0


class Refusing(MemoryLink):
    """A link whose clients refuse every task, with the number of tasks that there were."""

    def __init__(self, hurried: bool) -> None:
        super().__init__(["amiens"])
        self._hurried, self._count = hurried, 0

    def send(self, messages: Sequence[Message]) -> list[str]:
        ids = super().send(messages)
        for id, message in zip(ids, messages, strict=True):
            self._count += 1
            self.take(message.peer)
            self.put(Message(message.peer, "refused", {"reason": f"no {self._count}"}, b"", id))
            if self._hurried:  # it is back before the server looks again
                self.connect(message.peer)
        return ids


def refuse_twice(link: MemoryLink, folder: Path) -> list[str]:
    """Give the only client two tasks; return why it took none."""
    link.connect("amiens")
    clients = [ClientInfo(0, "amiens", 10)]
    remote = RemoteSites(link, clients, lambda _: {}, folder, run="a", states={}, grace=30.0)
    task = Task("update", 0, Round(0, 2, "train", 0, 2, 1, 5), Bundle({}))
    replies = [next(iter(remote.run([task]))) for _ in range(2)]
    return [reply.error.reason for reply in replies if reply.error]


def test_a_client_that_refuses_is_not_asked_again_over_the_same_connection(tmp_path: Path) -> None:
    assert refuse_twice(Refusing(False), tmp_path) == ["refused: no 1"] * 2


def test_a_client_that_refused_and_came_back_at_once_is_asked_again(tmp_path: Path) -> None:
    assert refuse_twice(Refusing(True), tmp_path) == ["refused: no 1", "refused: no 2"]
