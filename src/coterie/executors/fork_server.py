"""The process that workers are forked from: `python -m coterie.executors.fork_server HANDLE`.

It imports what a worker needs once, and forks a worker for every request that comes over the
socket HANDLE; `launch` holds the other end. One line of JSON is answered with one line of JSON:

{"do": "start", "environment", "folder", "path"}   with the worker's three standard handles
    -> {"pid"} or {"failed"}
{"do": "wait", "pid", "block"}
    -> {"status"}, null while the process runs

A process that has ended keeps its number until it is asked for, so that whoever wants to kill it
never meets another one. Until workers are forked there is no thread and no torch operation here,
and never a GPU. When the socket closes, this process ends at once.
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

STANDARD = 3  # input, output, errors: the handles that come with a start
_PIECE = 1 << 16


def main(handle: int) -> None:
    """Import, say so, then do what is asked until nobody is there to ask."""
    link = socket.socket(fileno=handle)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the statuses away
    _die_with(link)
    worker = importlib.import_module("coterie.executors.worker")
    importlib.import_module("torch._dynamo")  # the first optimiser would: as long as torch again
    _die_with(link, False)
    gc.collect()
    gc.freeze()  # what all workers share is never looked at again, and so never copied
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 2)  # what could be said from now on goes back over the socket
    os.close(nothing)
    os.chdir("/")
    with suppress(OSError):  # the other end is gone
        link.sendall(b"{}\n")
        while request := _receive(link):
            link.sendall(json.dumps(_do(link, worker.main, *request)).encode() + b"\n")


def _die_with(link: socket.socket, on: bool = True) -> None:
    """Have the kernel end this process when the other end closes, even in the middle of an import.

    Nothing is sent to us before we are ready, so the signal (SIGIO, which ends a process that does
    not handle it) can only mean that.
    """
    flags = fcntl.fcntl(link, fcntl.F_GETFL)
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    if on and poll.poll(0):  # it was gone before
        os._exit(0)


def _receive(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One request and the handles with it; None when the other end is closed."""
    text, handles = b"", list[int]()
    while not text.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(link, _PIECE, STANDARD)
        if not piece:
            return None
        text, handles = text + piece, handles + list(more)
    return json.loads(text), handles


def _do(
    link: socket.socket, work: Any, request: dict[str, Any], handles: list[int]
) -> dict[str, Any]:
    if request["do"] == "wait":
        pid, status = os.waitpid(request["pid"], 0 if request["block"] else os.WNOHANG)
        return {"status": os.waitstatus_to_exitcode(status) if pid else None}
    try:
        if len(handles) != STANDARD:
            return {"failed": "too many open files"}
        pid = os.fork()
        if pid == 0:
            _become_worker(link, work, request, handles)
        return {"pid": pid}
    except OSError as error:
        return {"failed": str(error)}
    finally:
        for handle in handles:
            os.close(handle)


def _become_worker(
    link: socket.socket, work: Any, request: dict[str, Any], handles: Sequence[int]
) -> NoReturn:
    """Leave the fork server: a session, handles, environment, folder and import path of its own."""
    status = 1
    try:
        os.setsid()
        for standard, handle in enumerate(handles):
            os.dup2(handle, standard)
            os.close(handle)
        link.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        importlib.invalidate_caches()
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]))
