"""Starts worker processes: forked from one fork server, which lives as long as this process.

Importing torch takes two seconds of a processor; a fork of a process that has done so takes a few
milliseconds. Where a fork server does not work, every worker is a process from scratch.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from coterie.core.errors import RunFailed

_PATIENCE = 300.0  # seconds for an answer of the fork server; the first one comes after its imports
_KILLED = 10.0  # seconds in which a process that was killed is gone
_PIECE = 1 << 16
# variables that are read while a process starts or a library is loaded
_EARLY = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_"),
    *("MKL_", "OPENBLAS_", "ATEN_", "TORCH_"),
)


class Process(Protocol):
    """A process with two pipes: what is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def stdin(self) -> IO[bytes] | None: ...  # noqa: D102
    @property
    def stdout(self) -> IO[bytes] | None: ...  # noqa: D102
    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None before it was asked for, or unknown."""

    def poll(self) -> int | None:
        """Ask for the exit status."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self) -> object:
        """Wait until it has ended."""


def start(environment: Mapping[str, str]) -> Process:
    """A worker with this environment, and with the folder and import path of this process."""
    environment = {**environment, "PYTHONPATH": os.pathsep.join(_import_path())}
    if not forks():
        return subprocess.Popen(
            [sys.executable, "-m", "coterie.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the main process alone, which then ends us
        )
    for _ in range(2):
        try:
            return Child(fork_server(environment), environment)
        except Gone as gone:  # someone killed the fork server: the next one is new
            reason = gone
    raise RunFailed(f"no worker can be started: {reason}")


def forks() -> bool:
    """Whether a fork server works here. System libraries of macOS do not bear a fork."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"


def _import_path() -> list[str]:
    return [path or _folder() for path in sys.path]


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return os.sep


class Gone(Exception):
    """The fork server does not answer any more."""


class ForkServer:
    """The process that workers are forked from; safe to use from several threads."""

    def __init__(self, environment: Mapping[str, str], conditions: object) -> None:
        self.conditions = conditions
        self.lock = threading.RLock()
        self._owner = os.getpid()
        self._link, theirs = socket.socketpair()
        self._link.settimeout(_PATIENCE)
        with theirs:
            self._process = subprocess.Popen(
                # -P: a file in the folder it happens to be started in hides no module
                [sys.executable, "-P", "-m", "coterie.executors.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self._answer()  # it has imported what it needs

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def ours(self) -> bool:
        """Whether this process started it; a fork of that process has no business with it."""
        return os.getpid() == self._owner

    def alive(self) -> bool:
        """Whether it may be asked."""
        with self.lock:
            return self.ours() and self._process.poll() is None

    def ask(self, request: Mapping[str, Any], handles: Sequence[int] = ()) -> dict[str, Any]:
        """Have a request answered; Gone if that is not possible."""
        if not self.ours():
            raise Gone
        text = json.dumps(request).encode() + b"\n"
        with self.lock:
            try:
                sent = socket.send_fds(self._link, [text], handles)
                self._link.sendall(text[sent:])
            except BaseException as error:
                self._give_up(error)
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        text = b""
        try:
            while not text.endswith(b"\n"):
                piece = self._link.recv(_PIECE)
                if not piece:
                    raise ConnectionResetError
                text += piece
        except BaseException as error:
            self._give_up(error)
        found: dict[str, Any] = json.loads(text)
        return found

    def _give_up(self, error: BaseException) -> NoReturn:
        """After an interrupt, too: an answer may come that would be taken for the next one."""
        with suppress(
            subprocess.TimeoutExpired
        ):  # it is ending: let it, for the sake of its status
            self._process.wait(0.5 if isinstance(error, OSError) else 0.0)
        self.close()
        if isinstance(error, OSError):
            code = self._process.returncode
            raise Gone(f"their fork server ended with status {code}") from error
        raise error

    def close(self) -> None:
        """End it; the workers it has forked go on."""
        self._link.close()
        if self.ours():
            self._process.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # not ours to wait for

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never started
            self.close()


class Child:
    """A worker that a fork server has forked."""

    def __init__(self, parent: ForkServer, environment: Mapping[str, str]) -> None:
        self._parent = parent
        self._ended, self.returncode = False, None
        self.stdin: IO[bytes] | None
        self.stdout: IO[bytes] | None
        request = {
            "do": "start",
            "environment": dict(environment),
            "folder": _folder(),
            "path": _import_path(),
        }
        (source, to), (back, sink) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(to, "wb", 0), os.fdopen(back, "rb", 0)
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            answer = parent.ask(request, [source, sink, 2 if _is_open(2) else nothing])
            if "failed" in answer:
                raise RunFailed(f"a worker cannot be started: {answer['failed']}")
        except BaseException:
            self.stdin.close()
            self.stdout.close()
            raise
        finally:
            for handle in (source, sink, nothing):
                os.close(handle)
        self.pid: int = answer["pid"]
        self._handle = _open_process(self.pid)

    def poll(self) -> int | None:
        """Ask for the exit status: None while it runs, or when nobody knows it."""
        self._ask(block=False)
        return self.returncode

    def wait(self) -> None:
        """Wait until it has ended."""
        self._ask(block=True)

    def kill(self) -> None:
        """Send SIGKILL."""
        with self._parent.lock, suppress(ProcessLookupError):
            if self._ended or not self._parent.ours():
                return
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            # the fork server keeps the number for us; without it another process may have got it
            elif self._parent.alive() or os.getsid(self.pid) == self.pid:
                os.kill(self.pid, signal.SIGKILL)

    def _ask(self, block: bool) -> None:
        with self._parent.lock:
            if self._ended or not self._parent.ours():
                return
            try:
                request = {"do": "wait", "pid": self.pid, "block": block}
                self.returncode = self._parent.ask(request)["status"]
                self._ended = self.returncode is not None
            except Gone:  # with it went the status
                self._ended = self._left(_KILLED if block else 0.0)
            if self._ended and self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _left(self, seconds: float) -> bool:
        """Whether it ends within a time, when nobody can be asked for its status."""
        if self._handle is not None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        deadline = time.monotonic() + seconds
        while True:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def _open_process(pid: int) -> int | None:
    """A handle that means this very process for ever, where the system has such a thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _is_open(handle: int) -> bool:
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def _conditions(environment: Mapping[str, str]) -> object:
    """What a process inherits at its start; where this changes, an old fork server is useless."""
    import resource

    early = {
        name: value
        for name, value in environment.items()
        if name.startswith(_EARLY) and name != "PYTHONPATH"  # the import path comes with a request
    }
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        early,
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        os.getpriority(os.PRIO_PROCESS, 0),
        [resource.getrlimit(getattr(resource, name)) for name in limits],
    )


_only: ForkServer | None = None
_lock = threading.Lock()


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """The fork server of this process, started if there is none that will do."""
    global _only
    with _lock:
        conditions = _conditions(environment)
        if _only is None or not _only.alive() or _only.conditions != conditions:
            _only = ForkServer(environment, conditions)
        return _only


def _forget() -> None:
    """In a fork of this process: the fork server is the parent's."""
    global _only, _lock
    _lock = threading.Lock()
    if _only is not None:
        _only.close()
    _only = None


def _end() -> None:
    """At the end of this process, and waited for: what it took is counted as taken by us."""
    if _only is not None:
        _only.close()


if forks():
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_end)
