"""Starts `coterie` commands as forks of this process, which has imported everything already.

A run in a process of its own takes over three seconds to import torch, and as long for the fork
server of its workers. Here both are forks. This process itself does no torch operation.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coterie.cli.main import main
from coterie.core import interrupts
from coterie.executors import fork_server, launch

DEADLINE = 120.0


class Process:
    """A fork of this process."""

    def __init__(self) -> None:
        self.pid = os.fork()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = DEADLINE) -> int:
        """Wait for the end; `TimeoutExpired` if it does not come."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.002)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, whether or not it is still there."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Server(Process):
    """Takes the place of `Popen` where a fork server is started."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> None:
        super().__init__()
        if self.pid:
            return
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            for number in range(3, max(map(int, os.listdir("/proc/self/fd"))) + 1):  # noqa: PTH208
                if number not in pass_fds:
                    with contextlib.suppress(OSError):
                        os.close(number)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            fork_server.main(*pass_fds)
        finally:
            os._exit(0)


def import_all(log: Path) -> None:
    """Import what a command that has ended had imported, so that the next ones need not."""
    for name in log.with_suffix(".modules").read_text().split():
        with contextlib.suppress(Exception):  # some are no modules of their own
            importlib.import_module(name)


def spawn(work: Callable[[], object], log: Path) -> Process:
    """Do something in a fork, with fork servers that are forks; what it says goes to a file.

    Its exit status is what `work` returns, 0 for anything but a number, or that of `SystemExit`.
    """
    for name in ("coterie.executors.worker", "coterie.executors.processes", "torch._dynamo"):
        importlib.import_module(name)
    process = Process()
    if process.pid:
        return process
    status: object = 99
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        names = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "TimeoutExpired")}
        launch.subprocess = SimpleNamespace(Popen=_Server, **names)  # type: ignore[assignment]
        try:
            status = work()
        except SystemExit as leave:
            status = leave.code
        except BaseException:
            traceback.print_exc()
            status = 98
    finally:
        try:
            interrupts.ignore()  # a signal that comes now must not skip what ends this fork
            with contextlib.suppress(Exception):
                log.with_suffix(".modules").write_text("\n".join(sys.modules))
                sys.stdout.flush()
                sys.stderr.flush()
        finally:
            os._exit(status if isinstance(status, int) else 0)


def start(words: Sequence[str], log: Path) -> Process:
    """Start a command."""
    return spawn(lambda: main(list(words)), log)


def judge(work: Callable[[], str], folder: Path) -> str:
    """Do a trial in a fork, so that nothing of it stays; what was wrong."""
    said, log = folder / "judged", folder / "judged.log"
    said.unlink(missing_ok=True)
    status = spawn(lambda: said.write_text(work()) * 0, log).wait()
    if status or not said.exists():
        return f"status {status}: {log.read_text()[-500:]}"
    return said.read_text()
