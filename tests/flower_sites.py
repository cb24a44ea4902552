"""A server and its sites over Flower, for tests: certificates, keys, and clients that echo."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from coterie.deploy.certificates import make_certificates
from coterie.deploy.flower.client import FlowerClientLink
from coterie.deploy.flower.server import FlowerServerLink
from coterie.deploy.guard import Receive, Scope, Send
from coterie.deploy.keys import make_key
from coterie.deploy.link import Message
from coterie.deploy.superlink import Listener

DEADLINE = 60.0  # of every wait in these tests


class Town:
    """A folder with certificates, a registry and the sites' own folders."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        self.folder, self.registry = folder, folder / "registry"
        self.tls = make_certificates(folder / "certificates", ["127.0.0.1"])
        self.registry.mkdir()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Make a key for a site and register it."""
        shutil.copy(make_key(self.folder / name, name).public, self.registry)

    def serve(self, port: int = 0, **options: Any) -> FlowerServerLink:
        """Start the server; a second one on the same folder resumes its database."""
        options = {"tls": self.tls, "keys": self.registry, **options}
        return FlowerServerLink("127.0.0.1", port, database=self.folder / "link.db", **options)

    def connect(self, address: str, name: str, **options: Any) -> FlowerClientLink:
        """Connect a site as its operator would."""
        key = self.folder / name / f"{name}.key"
        options = {"ca": self.tls.ca, "key": key, "patience": 10.0, **options}
        return FlowerClientLink(address, state=self.folder / name, **options)


class Echo:
    """A client in a thread that answers each request with its own body, reversed."""

    def __init__(self, link: FlowerClientLink) -> None:
        self.link = link
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self.link.receive()
            if message is None:
                self._stop.wait(0.05)
            else:
                self.link.reply(message, "echo", message.head, message.body[::-1])

    def close(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE)
        self.link.close()


async def serve_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Start and stop, and serve nothing."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


@contextmanager
def expired_server(folder: Path) -> Iterator[tuple[str, Path]]:
    """A server whose certificate has expired: its address, and its authority's certificate."""
    then = datetime.now(UTC) - timedelta(days=10)
    files = make_certificates(folder, ["127.0.0.1"], days=3, now=then)
    listener = Listener(serve_nothing, "127.0.0.1", 0, files)
    yield f"127.0.0.1:{listener.port}", files.ca
    listener.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def take(link: FlowerClientLink) -> Message:
    """Wait for the next request to a client."""
    taken: list[Message] = []

    def arrived() -> bool:
        request = link.receive()
        taken.extend([request] if request else [])
        return bool(taken)

    wait_for(arrived)
    return taken[0]


def collect(server: FlowerServerLink, ids: Sequence[str]) -> list[Message]:
    """Wait for the answers to requests, in the order of the requests."""
    answers: dict[str, Message] = {}

    def complete() -> bool:
        found = server.receive([id for id in ids if id not in answers])
        answers.update({message.id: message for message in found})
        return len(answers) == len(ids)

    wait_for(complete)
    return [answers[id] for id in ids]
