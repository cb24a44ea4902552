"""Passes the events of a run to tracking tools, each in a process of its own."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.settings import RecordSettings
from coterie.engine.record import Event, Recorders, RoundEvent, StartEvent
from coterie.engine.sink import Status
from coterie.executors.launch import import_path
from coterie.executors.sink_host import KEY, find_sink

_PATIENCE: dict[Status, float] = {"finished": 120.0, "interrupted": 3.0, "failed": 10.0}
_PAUSE = 0.02  # seconds between looks at a tool that ends
_CHUNK = 1 << 16


def check_sinks(record: RecordSettings) -> None:
    """Raise before the run starts if a tool is unknown or not installed."""
    for name in record.sinks:
        sink = find_sink(name)
        missing = [module for module in sink.modules if importlib.util.find_spec(module) is None]
        if missing:
            remedy = f"pip install 'coterie[{sink.extra}]'" if sink.extra else "install it"
            raise ConfigError(f"{KEY} = [{name!r}] needs the package {missing[0]}: {remedy}")


class SinkProcess:
    """A recorder that hands events to the process of a tool, and never waits for it."""

    def __init__(self, name: str, online: bool, recorders: Recorders) -> None:
        self.name, self._online, self._recorders = name, online, recorders
        self._process: subprocess.Popen[bytes] | None = None
        self._backlog, self._answer = bytearray(), bytearray()
        self._ending = False

    def __call__(self, event: Event) -> None:
        """Handle one event of the run."""
        if isinstance(event, StartEvent):
            self._start(event)
        elif self._process is not None:
            if isinstance(event, RoundEvent):
                self._send(kind="round", line=event.line())
            self._pump()

    def tell_end(self, status: Status) -> None:
        """Tell the tool how the run ended; it may still have events to store."""
        self._send(kind="end", status=status)
        self._ending = True
        self._pump()

    def wait(self, deadline: float) -> None:
        """Let the tool store what it has until a time; then its process is ended."""
        try:
            while self._process is not None and not self._pump():
                if time.monotonic() > deadline:
                    self._give_up("it took too long to store the last rounds")
                time.sleep(_PAUSE)
        finally:
            self._close()

    def _start(self, event: StartEvent) -> None:
        metrics = event.folder / "metrics.jsonl"
        try:
            self._process = subprocess.Popen(
                # -P: files in the current folder must not shadow modules
                [sys.executable, "-P", "-m", "coterie.executors.sink_host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is for the run alone
                bufsize=0,
            )
        except OSError as error:
            self._give_up(f"its process cannot be started: {error.strerror or error}")
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._send(
            kind="start",
            name=self.name,
            path=import_path(),
            folder=str(event.folder.absolute()),
            first=event.first,
            total=event.total,
            committed=metrics.stat().st_size if metrics.exists() else 0,
            online=self._online,
        )
        self._pump()

    def _send(self, **message: Any) -> None:
        self._backlog += json.dumps(message).encode() + b"\n"

    def _pump(self) -> bool:
        """Write as much as the pipe takes; return whether the tool has ended, well or not."""
        if (process := self._process) is None:
            return True
        assert process.stdin is not None and process.stdout is not None
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._backlog:
                del self._backlog[: os.write(process.stdin.fileno(), self._backlog[:_CHUNK])]
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(process.stdout.fileno(), _CHUNK):
                self._answer += chunk
        if self._answer.endswith(b"\n"):
            answer = json.loads(self._answer)
            self._give_up(answer["failed"], answer["trace"])
        elif ended is not None and (ended.si_status != 0 or not self._ending):
            self._give_up(f"its process ended with status {ended.si_status}")
        return ended is not None or self._process is None

    def _give_up(self, reason: str, trace: str = "") -> None:
        """Note once why the tool is switched off, and end its process."""
        self._close()
        self._recorders.note(f"{KEY}: {self.name} is switched off: {reason}", trace=trace)

    def _close(self) -> None:
        if (process := self._process) is None:
            return
        self._process = None
        with contextlib.suppress(ProcessLookupError):  # until `wait` its number is no other's
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        process.wait()


def make_sinks(record: RecordSettings, listeners: Sequence[Any]) -> list[SinkProcess]:
    """Make a recorder for each tool that `record.to` names; the listeners get its note."""
    return [SinkProcess(name, record.online, Recorders(listeners)) for name in record.sinks]


@contextmanager
def ending(sinks: Sequence[SinkProcess]) -> Iterator[None]:
    """Tell all tools how a run ended."""
    status: Status = "finished"
    try:
        yield
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except BaseException:
        status = "failed"
        raise
    finally:
        deadline = time.monotonic() + _PATIENCE[status]
        with contextlib.ExitStack() as stack:
            for sink in sinks:
                sink.tell_end(status)
                stack.callback(sink.wait, deadline)
