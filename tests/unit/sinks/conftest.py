"""A made-up run for tracking tools, and a machine without a network."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.engine.record import RoundEvent
from coterie.engine.sink import Sink, TrackedRun

CONFIG = {
    "run": {"seed": 3, "rounds": 4},
    "data": {"name": "digits"},
    "method": {"name": "moon", "mu": 1.5},
    "objective": {"name": "supervised"},
    "evaluate": {"with": ["accuracy"], "targets": [0.5]},
}
ROUNDS = [
    RoundEvent(
        round=number,
        stage="train",
        cohort=[0, 1, 2],
        lost={"1": "dropped"},
        rejected={},
        skipped=False,
        metrics={"accuracy": number / 8, "train_loss": 2.0 - number},
        bytes_up=100,
        bytes_down=200,
        evaluation_bytes_up=0,
        evaluation_bytes_down=0,
        seconds=0.5,
        digest="d",
        states="s",
    )
    for number in range(4)
]


class Tracker:
    """Drives sinks as the process of a tool does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch

    def run(self, sink: Sink, first: int, last: int, status: Any, online: bool = False) -> None:
        """Track the rounds from `first` up to `last`."""
        run = TrackedRun(self.folder, CONFIG, ROUNDS[:first], first, 4, online)
        for name, value in sink.environment(run).items():
            if value is None:
                self._monkeypatch.delenv(name, raising=False)
            else:
                self._monkeypatch.setenv(name, value)
        sink.start(run)
        for event in ROUNDS[first : last + 1]:
            sink.round(event)
        sink.end(status)


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    folder = tmp_path / "my-run"
    folder.mkdir()
    return Tracker(folder, monkeypatch)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was asked of other machines: refused here, and seen by a proxy for other processes."""
    asked: list[Any] = []
    connect = socket.socket.connect

    def refuse(link: socket.socket, address: Any) -> None:
        if link.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"):
            connect(link, address)
            return
        asked.append(address)
        raise OSError("there is no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        yield asked
        proxy.settimeout(0.05)
        with pytest.raises(TimeoutError):
            asked.append(proxy.accept())
        assert asked == []
