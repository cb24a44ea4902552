"""Federations in one process: a server and clients in threads, over a link in memory."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import coterie
import toy
from coterie.core.errors import CoterieError
from coterie.deploy import server
from coterie.deploy.client import Client, Consent
from coterie.deploy.gather import Patience
from coterie.deploy.link import MemoryClientLink, MemoryLink, Message
from coterie.deploy.own_data import OwnData
from coterie.experiment.config import resolve
from coterie.experiment.result import Result

POLL = 0.002
_COMPUTING = threading.Lock()  # torch's global generators are one for all threads
GRACE = 20.0
NAMES = ("amiens", "berlin", "cadiz")


def write_sites(root: Path, names: Sequence[str] = NAMES, images: bool = False) -> Path:
    """Write an .npz file for each site; sites differ in size and in the classes they have."""
    root.mkdir(parents=True, exist_ok=True)
    whole = np.load(toy.write_data(root.parent / "whole.npz", train=240, test=60))
    x, y = whole["x_train"], whole["y_train"]
    if images:
        draw = np.random.default_rng(3)
        centres = draw.integers(40, 216, (toy.CLASSES, 1, 8, 8))
        noise = draw.integers(-40, 40, (len(y), 1, 8, 8))
        x = (centres[y] + noise).clip(0, 255).astype(np.uint8)
    cuts = {"amiens": slice(0, 110), "berlin": slice(110, 180), "cadiz": slice(180, 240)}
    for number, name in enumerate(names):
        own, labels = x[cuts[name]], y[cuts[name]]
        kept = labels != 2 if number == 1 else np.ones(len(labels), bool)
        np.savez(root / f"{name}.npz", x=own[kept], y=labels[kept])
    return root


def tables(root: Path | str, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The toy configuration for sites, with tables changed."""
    rest = {name: table for name, table in changes.items() if name != "data"}
    base = toy.tables(Path(str(root)), **rest)
    base["data"] = {"name": "sites", "root": str(root), **changes.get("data", {})}
    base["partition"] = {"kind": "by-group"}
    base.setdefault("evaluate", {"with": ["personal"], "metric": "client_accuracy_mean"})
    return base


class Worker(Client):  # type: ignore[misc]
    """A client that computes while no other does."""

    def _work(self, desk: Any, request: Message) -> None:
        with _COMPUTING:
            super()._work(desk, request)


class Fleet:
    """Clients in threads that can be stopped and started again, and what they said."""

    def __init__(self, root: Path, folder: Path, names: Sequence[str] = NAMES) -> None:
        self.root, self.folder, self.names = root, folder, names
        self.link = MemoryLink(names)
        self.said: dict[str, list[str]] = {name: [] for name in names}
        self.ended: dict[str, str] = {}
        self.revived_in: dict[str, Path] = {}  # clients that start again after a cut, with a disk
        self._threads: list[threading.Thread] = []

    def start(
        self,
        name: str,
        consent: Consent | None = None,
        link: Any = None,
        data: OwnData | None = None,
    ) -> threading.Thread:
        """Connect a client and let it work."""
        client = Worker(
            link or self.link.connect(name),
            data or OwnData(str(next(self.root.glob(f"{name}.*")))),
            name,
            self.folder / f"site-{name}",
            consent or Consent(),
            say=self.said[name].append,
            poll=POLL,
        )
        thread = threading.Thread(target=self._serve, args=(name, client), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _serve(self, name: str, client: Client) -> None:
        try:
            self.ended[name] = client.serve()
        except CoterieError as error:
            self.ended[name] = str(error)
        except Cut:
            if name in self.revived_in:
                self.folder = self.revived_in.pop(name)
                self.start(name)

    def run(
        self, out: Path, tables: Mapping[str, Any], *, start: bool = True, **options: Any
    ) -> Result:
        """Run a server with these clients, in this thread."""
        if start:
            for name in self.names:
                self.start(name)
        plain = {**tables, "data": {**tables["data"], "root": ""}}
        return serve(self, plain, out, **options)

    def join(self) -> None:
        """Wait until all clients have ended."""
        for thread in self._threads:
            thread.join(20.0)
            assert not thread.is_alive()


def serve(fleet: Fleet, tables: Mapping[str, Any], out: Path, **options: Any) -> Result:
    """Run a server in this thread."""
    waits = (options.pop("wait", 60.0), options.pop("grace", GRACE))
    patience = Patience(options.pop("clients", 0), *waits, options.pop("poll", POLL))
    return server.serve(resolve(dict(tables)), fleet.link, out, patience=patience, **options)


class Cut(Exception):
    """The client's process is gone."""


class FragileLink:
    """A client's link that is cut at the reply to the n-th task, before or after it is sent."""

    def __init__(self, link: MemoryClientLink, after: int, sent: bool = False) -> None:
        self._link, self._left, self._sent = link, after, sent

    def receive(self) -> Message | None:
        return self._link.receive()

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        if kind == "reply":
            self._left -= 1
            if self._left < 0:
                if self._sent:
                    self._link.reply(to, kind, head, body)
                raise Cut
        self._link.reply(to, kind, head, body)

    def close(self) -> None:
        self._link.close()


def digests(folder: Path) -> list[tuple[str, str]]:
    """The digests of the server's state and of all clients' states, by round."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(event["digest"], event["states"]) for event in map(json.loads, lines)]


def simulate(root: Path, out: Path, tables: Mapping[str, Any]) -> Result:
    """Run the same federation in one process."""
    return coterie.run(dict(tables), out=out)
