"""Tracking tools in processes of their own: told everything, waited for shortly, never obeyed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.core.errors import ConfigError
from coterie.core.settings import RecordSettings
from coterie.engine.record import Event, MetricsFile, NoteEvent, RoundEvent, StartEvent
from coterie.executors import sink_process
from coterie.executors.sink_process import SinkProcess, check_sinks, ending, make_sinks

OWN = """
import os, sys, time
from coterie import Sink

class Good(Sink):
    def environment(self, run):
        return {"TOOL_FOLDER": str(run.folder), "SECRET": None}

    def start(self, run):
        self.out = open(os.environ["TOOL_FOLDER"] + "/good.txt", "a")
        self.say("start", run.first, len(run.history), run.parameters()["run.seed"], run.online)
        self.say(os.environ.get("SECRET"), "torch" in sys.modules)
        print("nobody reads this")

    def say(self, *words):
        print(*words, file=self.out, flush=True)

    def round(self, event):
        self.say("round", event.round, event.metrics["accuracy"])

    def end(self, status):
        self.say("end", status)

class Raises(Good):
    def round(self, event):
        raise OSError("no space left on device")

class Exits(Good):
    def round(self, event):
        sys.exit(0)

class Dies(Good):
    def round(self, event):
        os.kill(os.getpid(), 9)

class Hangs(Good):
    def round(self, event):
        self.say(os.getpid())
        time.sleep(600)

class NoSink:
    pass
"""
ROUND = RoundEvent(0, "train", [0], {}, {}, False, {"accuracy": 0.5}, 1, 2, 0, 0, 0.1, "d", "s")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, with a module of tools on the import path."""
    (tmp_path / "own_tools.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_tools", raising=False)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("[run]\nseed = 5\n")
    return run


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def start(folder: Path, notes: list[str]) -> Iterator[Callable[..., SinkProcess]]:
    """Start a tool of the module, and end what is left of it."""
    started: list[SinkProcess] = []

    def listen(event: Event) -> None:
        assert isinstance(event, NoteEvent)
        notes.append(event.text)

    def make(name: str, first: int = 0) -> SinkProcess:
        (sink,) = make_sinks(RecordSettings(to=f"own_tools:{name}"), [listen])
        sink(StartEvent(folder, 3, first, 3))
        started.append(sink)
        return sink

    yield make
    for sink in started:
        sink.wait(0.0)


def wait_for(is_done: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def pump(sink: SinkProcess, notes: list[str]) -> None:
    """Tell a tool of rounds until it is switched off."""

    def tell() -> bool:
        sink(ROUND)
        return bool(notes)

    wait_for(tell)


def test_a_tool_is_told_of_the_start_every_round_and_the_end(
    folder: Path,
    start: Callable[..., SinkProcess],
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "of the shell")
    file = MetricsFile(folder / "metrics.jsonl")
    file.append(ROUND)
    sink = start("Good", first=1)
    for number in (1, 2):
        file.append(replace(ROUND, round=number))
        sink(replace(ROUND, round=number))
    with ending([sink]):
        pass
    assert (folder / "good.txt").read_text().splitlines() == [
        *("start 1 1 5 False", "None False", "round 1 0.5", "round 2 0.5", "end finished"),
    ]
    assert not notes and os.environ["SECRET"] == "of the shell"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Raises", "OSError: no space left on device"),
        ("Exits", "its process ended with status 0"),
        ("Dies", "its process ended with status 9"),
    ],
)
def test_a_tool_that_fails_is_one_note(
    name: str, reason: str, start: Callable[..., SinkProcess], notes: list[str]
) -> None:
    sink = start(name)
    pump(sink, notes)
    sink(ROUND)
    with ending([sink]):
        pass
    assert notes == [f"record.to: own_tools:{name} is switched off: {reason}"]


def test_a_tool_that_hangs_holds_neither_rounds_nor_the_end_up(
    folder: Path,
    start: Callable[..., SinkProcess],
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sink_process._PATIENCE, "interrupted", 0.2)
    sink = start("Hangs")
    sink(ROUND)
    said = folder / "good.txt"
    wait_for(lambda: said.exists() and len(said.read_text().splitlines()) == 3)
    large = replace(ROUND, metrics={"accuracy": 0.5, **{f"m{n}": 0.1 for n in range(5000)}})
    begin = time.monotonic()
    for _ in range(20):  # far more than a pipe takes
        sink(large)
    with pytest.raises(KeyboardInterrupt), ending([sink]):
        raise KeyboardInterrupt
    assert time.monotonic() - begin < 5.0
    (note,) = notes
    assert "took too long" in note
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text().split()[-1]), 0)


def test_a_process_that_cannot_be_started_is_one_note(
    start: Callable[..., SinkProcess], notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    sink = start("Good")
    sink(ROUND)
    assert len(notes) == 1 and "Resource temporarily unavailable" in notes[0]


def test_a_tool_does_not_outlive_the_main_process(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie.executors.sink_host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    first = {"kind": "start", "name": "own_tools:Good", "path": sys.path, "folder": str(folder)}
    more = {"first": 0, "total": 3, "committed": 0, "online": True}
    process.stdin.write(json.dumps({**first, **more}).encode() + b"\n")
    process.stdin.close()  # as the kernel does when the main process is killed
    assert process.wait(30) in (0, -signal.SIGKILL)
    assert (folder / "good.txt").read_text().splitlines()[-1] == "end interrupted"


def test_what_cannot_be_used_is_refused_before_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_sinks(RecordSettings(to=("tensorboard", "own_tools:Good")))
    with pytest.raises(ConfigError, match=r"record\.to = 'own_tools:NoSink' is not a Sink"):
        check_sinks(RecordSettings(to="own_tools:NoSink"))
    with pytest.raises(ConfigError, match=r"record\.to = 'own_tools:None' cannot be imported"):
        check_sinks(RecordSettings(to="own_tools:None"))
    with pytest.raises(ConfigError, match=r"record\.to = 'wandbb' is not known; did you mean 'wa"):
        RecordSettings(to=("wandbb",))
    with pytest.raises(ConfigError, match="names a tool twice"):
        RecordSettings(to=("wandb", "wandb"))
    monkeypatch.setattr(sink_process.importlib.util, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow", "trackio"):
        with pytest.raises(ConfigError, match=rf"needs the package {name}: .*coterie\[{name}\]"):
            check_sinks(RecordSettings(to=(name,)))
