"""Starts worker processes by forking them from a fork server that lives as long as this process.

Importing torch takes two seconds of CPU time; forking a process that has imported it takes a few
milliseconds. On platforms without a safe fork, every worker is started from scratch.
"""

import atexit
import errno
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
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from coterie.core.errors import RunFailed

_TIMEOUT = 300.0  # seconds for a reply of the fork server; the first one follows its imports
_KILL_TIMEOUT = 10.0  # seconds for a killed process to end
_BUFFER = 1 << 16
_FEW_HANDLES = (errno.EMFILE, errno.ENFILE)  # of this process, of the whole machine
# variables that are read only while a process starts or a library is loaded
_STARTUP_VARIABLES = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_"),
    *("MKL_", "OPENBLAS_", "ATEN_", "TORCH_"),
)


def can_fork() -> bool:
    """Whether a fork server works here; the system libraries of macOS are not fork-safe."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"


def import_path() -> list[str]:
    """List the folders in which this process looks for modules."""
    return [path or _working_folder() for path in sys.path]


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # the folder was removed
        return os.sep


class Gone(Exception):
    """The fork server does not answer any longer."""


class ForkServer:
    """The client side of a fork server process; thread-safe."""

    def __init__(self, environment: Mapping[str, str], conditions: object) -> None:
        self.conditions = conditions
        self.lock = threading.RLock()
        self._owner = os.getpid()
        self._link, theirs = socket.socketpair()
        self._link.settimeout(_TIMEOUT)
        with theirs:
            self._process = subprocess.Popen(
                # -P: files in the current folder must not shadow modules
                [sys.executable, "-P", "-m", "coterie.executors.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._read_reply()  # the imports are done

    def ours(self) -> bool:
        """Whether this very process started it, and not a parent that we were forked from."""
        return os.getpid() == self._owner

    def alive(self) -> bool:
        """Whether it can take requests."""
        with self.lock:
            return self.ours() and self._process.poll() is None

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request and return the reply; raise `Gone` if that is not possible."""
        if not self.ours():
            raise Gone
        text = json.dumps(request).encode() + b"\n"
        with self.lock:
            try:
                sent = socket.send_fds(self._link, [text], descriptors)
                self._link.sendall(text[sent:])
            except BaseException as error:
                self._give_up(error)
            return self._read_reply()

    def _read_reply(self) -> dict[str, Any]:
        text = b""
        try:
            while not text.endswith(b"\n"):
                chunk = self._link.recv(_BUFFER)
                if not chunk:
                    raise ConnectionResetError
                text += chunk
        except BaseException as error:
            self._give_up(error)
        return dict(json.loads(text))

    def _give_up(self, error: BaseException) -> NoReturn:
        """Close, even after an interrupt: a late reply would be mistaken for the next one."""
        with suppress(subprocess.TimeoutExpired):  # if it is ending, wait for its exit status
            self._process.wait(0.5 if isinstance(error, OSError) else 0.0)
        self.close()
        if isinstance(error, OSError):
            code = self._process.returncode
            raise Gone(f"the fork server ended with status {code}") from error
        raise error

    def close(self) -> None:
        """Kill the fork server; workers that it has forked keep running."""
        self._link.close()
        if self.ours():
            self._process.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # only the parent can wait for it

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never started
            self.close()


class Child:
    """A worker that was forked by a fork server."""

    def __init__(self, parent: ForkServer, environment: Mapping[str, str]) -> None:
        self._parent = parent
        self._ended, self.returncode = False, None
        request = {
            "do": "start",
            "environment": dict(environment),
            "folder": _working_folder(),
            "path": import_path(),
        }
        with ExitStack() as ours, ExitStack() as theirs:
            child_in, self.stdin = _open_pipe(theirs, ours, to_child=True)
            child_out, self.stdout = _open_pipe(theirs, ours, to_child=False)
            errors = _open_stderr()
            theirs.callback(os.close, errors)
            reply = parent.ask(request, [child_in, child_out, errors])
            if "failed" in reply:
                raise RunFailed(f"a worker cannot be started: {reply['failed']}")
            ours.pop_all()  # they stay open
        self.pid: int = reply["pid"]
        self._pidfd = _open_pidfd(self.pid)

    def wait(self) -> None:
        """Wait until the process has ended."""
        self.poll(block=True)

    def kill(self) -> None:
        """Send SIGKILL."""
        with self._parent.lock, suppress(ProcessLookupError):
            if self._ended or not self._parent.ours():
                return
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            # the fork server keeps a dead worker as a zombie; without it the ID may be reused
            elif self._parent.alive() or os.getsid(self.pid) == self.pid:
                os.kill(self.pid, signal.SIGKILL)

    def poll(self, block: bool = False) -> int | None:
        """Return the exit status: None while the process runs, or if it is unknown."""
        with self._parent.lock:
            if self._ended or not self._parent.ours():
                return self.returncode
            try:
                request = {"do": "wait", "pid": self.pid, "block": block}
                self.returncode = self._parent.ask(request)["status"]
                self._ended = self.returncode is not None
            except Gone:  # nobody knows the exit status then
                self._ended = self._ends_within(_KILL_TIMEOUT if block else 0.0)
            if self._ended and self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
            return self.returncode

    def _ends_within(self, seconds: float) -> bool:
        """Wait for the process to end, without the fork server; return whether it has ended."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
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


def _open_pipe(theirs: ExitStack, ours: ExitStack, to_child: bool) -> tuple[int, FileIO]:
    """Open a pipe: the descriptor of the child's end, and our end as a file."""
    reader, writer = os.pipe()
    child, own = (reader, writer) if to_child else (writer, reader)
    theirs.callback(os.close, child)
    return child, ours.enter_context(FileIO(own, "w" if to_child else "r"))


def _open_stderr() -> int:
    """Open a second descriptor of stderr; of nothing, if stderr is closed."""
    try:
        return os.dup(2)
    except OSError as error:
        if error.errno in _FEW_HANDLES:
            raise
        return os.open(os.devnull, os.O_WRONLY)


Process = subprocess.Popen[bytes] | Child  # both have pid, pipes, returncode, poll, kill and wait


def start(environment: Mapping[str, str]) -> Process:
    """Start a worker with this environment, and the folder and import path of this process."""
    try:
        return _start(environment)
    except OSError as error:
        if error.errno not in _FEW_HANDLES:
            raise
        raise RunFailed(
            f"no worker can be started: {error.strerror}; raise the limit of open files "
            "(ulimit -n 1024), or use executor.kind = 'serial'"
        ) from error


def _start(environment: Mapping[str, str]) -> Process:
    environment = {**environment, "PYTHONPATH": os.pathsep.join(import_path())}
    if not can_fork():
        return subprocess.Popen(
            [sys.executable, "-m", "coterie.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the main process, which ends its workers
        )
    for _ in range(2):
        try:
            return Child(fork_server(environment), environment)
        except Gone as error:  # the fork server was killed: the second attempt starts a new one
            reason = error
    raise RunFailed(f"no worker can be started: {reason}")


def _open_pidfd(pid: int) -> int | None:
    """Open a file descriptor that refers to this process even if its ID is reused (Linux)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _conditions(environment: Mapping[str, str]) -> object:
    """Describe what a process inherits at its start; if it changes, a new fork server is needed."""
    import resource

    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(_STARTUP_VARIABLES)
        and name != "PYTHONPATH"  # the import path comes with each request
    }
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        variables,
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        os.getpriority(os.PRIO_PROCESS, 0),
        [resource.getrlimit(getattr(resource, name)) for name in limits],
    )


_server: ForkServer | None = None
_lock = threading.Lock()


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """Return the fork server of this process; start one if there is none with these conditions."""
    global _server
    with _lock:
        conditions = _conditions(environment)
        if _server is None or not _server.alive() or _server.conditions != conditions:
            _server = ForkServer(environment, conditions)
        return _server


def _reap() -> None:
    """Reap the fork server at exit so that its CPU time is charged to this process."""
    if _server is not None:
        _server.close()


def _forget() -> None:
    """In a fork of this process: drop the fork server, which belongs to the parent."""
    global _server, _lock
    _lock = threading.Lock()
    _reap()
    _server = None


if can_fork():
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_reap)
