"""How the server's executor over a link ends a run; tasks and replies are in test_server.py."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from coterie.core.task import ClientInfo
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
