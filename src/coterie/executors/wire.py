"""Messages between the main process and its workers: a JSON header, then an encoded bundle.

4 bytes header length | 8 bytes body length | header | body (coterie.core.codec)
"""

import json
import os
import select
import struct
import time
from dataclasses import asdict
from typing import Any

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.task import Attempt, Failure, Reply, Round, Task

_PREFIX = struct.Struct("<IQ")
_BUFFER = 1 << 20
_TASK_FIELDS = ("op", "client", "round", "program", "attempt")  # all but the payloads
_REPLY_FIELDS = ("client", "examples", "metrics", "error", "seconds", "state")


class Closed(Exception):
    """The other end of the pipe is closed."""


class Late(Exception):
    """The deadline passed before a complete message arrived."""


def send(descriptor: int, head: dict[str, Any], body: bytes = b"") -> None:
    """Write one message; its header may contain dataclasses."""
    text = json.dumps(head, default=asdict).encode()
    try:
        for part in (_PREFIX.pack(len(text), len(body)) + text, body):
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
    except (BrokenPipeError, OSError) as error:
        raise Closed(str(error)) from error


def receive(descriptor: int, deadline: float | None = None) -> tuple[dict[str, Any], bytes]:
    """Read one message, waiting at most until the deadline, a time of `time.monotonic`."""
    head_size, body_size = _PREFIX.unpack(_read_exactly(descriptor, _PREFIX.size, deadline))
    head = json.loads(_read_exactly(descriptor, head_size, deadline))
    return head, _read_exactly(descriptor, body_size, deadline)


def _read_exactly(descriptor: int, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise Late
        try:
            chunk = os.read(descriptor, min(_BUFFER, size - len(data)))
        except OSError as error:
            raise Closed(str(error)) from error
        if not chunk:
            raise Closed("end of file")
        data += chunk
    return bytes(data)


def task_head(task: Task) -> dict[str, Any]:
    """Describe a task, without its payloads, for the header of a message."""
    fields = {name: getattr(task, name) for name in _TASK_FIELDS}
    return {"kind": "task", **fields, "own": task.own is not None}


def read_task(head: dict[str, Any], body: bytes, down: Bundle) -> Task:
    """Reconstruct a task from its message and the broadcast that was sent before it."""
    fields, attempt = {name: head[name] for name in _TASK_FIELDS}, head["attempt"]
    fields["round"] = Round(**head["round"])
    fields["attempt"] = Attempt(attempt["number"], attempt["first"], tuple(attempt["kept"]))
    return Task(**fields, down=down, own=codec.decode(body) if head["own"] else None)


def reply_head(reply: Reply) -> dict[str, Any]:
    """Describe a reply, without its payload, for the header of a message."""
    return {"kind": "reply", **{name: getattr(reply, name) for name in _REPLY_FIELDS}}


def read_reply(head: dict[str, Any], body: bytes) -> Reply:
    """Reconstruct a reply from its message."""
    fields = {name: head[name] for name in _REPLY_FIELDS}
    if head["error"] is not None:
        fields["error"] = Failure(**head["error"])
    return Reply(**fields, up=codec.decode(body))
