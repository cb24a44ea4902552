"""The fork server: a process that forks workers, `python -m coterie.executors.fork_server FD`.

It imports what workers need once, and forks a worker for every request that arrives on the socket
with the file descriptor FD; `launch` has the other end. Each request and reply is one JSON line:

{"do": "start", "environment", "folder", "path"}   with stdin, stdout and stderr of the worker
    -> {"pid"} or {"failed"}
{"do": "wait", "pid", "block"}
    -> {"status"}, null while the process runs

A dead worker stays a zombie until `wait`, so its process ID cannot be reused before someone kills
it. This process starts no thread, runs no torch operation and never uses a GPU, since none of
that survives a fork. It exits as soon as the socket closes.
"""

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

STANDARD = 3  # the file descriptors sent with a start: stdin, stdout, stderr
_BUFFER = 1 << 16


def main(descriptor: int) -> None:
    """Import the worker's modules, report readiness, serve requests until the socket closes."""
    link = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, exit statuses would be lost
    _die_with(link)
    worker = importlib.import_module("coterie.executors.worker")
    importlib.import_module("torch._dynamo")  # the first optimiser needs it: as slow as torch
    _die_with(link, False)
    gc.collect()
    gc.freeze()  # the collector leaves shared objects alone, so their pages are not copied
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)  # errors are reported over the socket from now on
    os.close(null)
    os.chdir("/")
    with suppress(OSError):  # the other end has closed
        link.sendall(b"{}\n")
        while request := _receive(link):
            link.sendall(json.dumps(_handle(link, worker.main, *request)).encode() + b"\n")


def _die_with(link: socket.socket, on: bool = True) -> None:
    """Have the kernel kill this process when the other end closes, even during an import.

    Nothing is sent before this process is ready, so SIGIO, whose default action ends the process,
    can only mean that the socket was closed.
    """
    flags = fcntl.fcntl(link, fcntl.F_GETFL)
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    if on and poll.poll(0):  # it was closed already
        os._exit(0)


def _receive(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one request and its file descriptors; None when the other end is closed."""
    text, descriptors = b"", list[int]()
    while not text.endswith(b"\n"):
        chunk, more, _, _ = socket.recv_fds(link, _BUFFER, STANDARD)
        if not chunk:
            return None
        text, descriptors = text + chunk, descriptors + list(more)
    return json.loads(text), descriptors


def _handle(
    link: socket.socket, work: Any, request: dict[str, Any], descriptors: list[int]
) -> dict[str, Any]:
    if request["do"] == "wait":
        pid, status = os.waitpid(request["pid"], 0 if request["block"] else os.WNOHANG)
        return {"status": os.waitstatus_to_exitcode(status) if pid else None}
    try:
        if len(descriptors) != STANDARD:
            return {"failed": "too many open files"}
        pid = os.fork()
        if pid == 0:
            _become_worker(link, work, request, descriptors)
        return {"pid": pid}
    except OSError as error:
        return {"failed": str(error)}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _become_worker(
    link: socket.socket, work: Any, request: dict[str, Any], descriptors: Sequence[int]
) -> NoReturn:
    """In the child: take on the session, files, environment and paths of a worker, and run it."""
    status = 1
    try:
        os.setsid()
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        link.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        importlib.invalidate_caches()
        work()
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]))
