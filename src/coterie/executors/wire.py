"""Messages between a process and its workers: a JSON head and, behind it, a bundle.

4 bytes head length | 8 bytes body length | head | body (coterie.core.codec)
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
_PIECE = 1 << 20


class Closed(Exception):
    """The other end is gone."""


class Late(Exception):
    """The deadline passed before a whole message came."""


def send(handle: int, head: dict[str, Any], body: bytes = b"") -> None:
    """Write one message."""
    text = json.dumps(head).encode()
    try:
        for part in (_PREFIX.pack(len(text), len(body)) + text, body):
            view = memoryview(part)
            while view:
                view = view[os.write(handle, view) :]
    except (BrokenPipeError, OSError) as error:
        raise Closed(str(error)) from error


def receive(handle: int, deadline: float | None = None) -> tuple[dict[str, Any], bytes]:
    """Read one message, until the deadline (of `time.monotonic`) if there is one."""
    head_size, body_size = _PREFIX.unpack(_exactly(handle, _PREFIX.size, deadline))
    head = json.loads(_exactly(handle, head_size, deadline))
    return head, _exactly(handle, body_size, deadline)


def _exactly(handle: int, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            poll = select.poll()
            poll.register(handle, select.POLLIN | select.POLLHUP)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise Late
        try:
            piece = os.read(handle, min(_PIECE, size - len(data)))
        except OSError as error:
            raise Closed(str(error)) from error
        if not piece:
            raise Closed("end of file")
        data += piece
    return bytes(data)


def task_head(task: Task) -> dict[str, Any]:
    """All of a task but its payloads."""
    return {
        "kind": "task",
        "op": task.op,
        "client": task.client,
        "round": asdict(task.round),
        "program": task.program,
        "attempt": asdict(task.attempt),
        "own": task.own is not None,
    }


def read_task(head: dict[str, Any], body: bytes, down: Bundle) -> Task:
    """The task again, with the broadcast that was sent before it."""
    attempt = head["attempt"]
    return Task(
        op=head["op"],
        client=head["client"],
        round=Round(**head["round"]),
        down=down,
        own=codec.decode(body) if head["own"] else None,
        program=head["program"],
        attempt=Attempt(attempt["number"], attempt["first"], tuple(attempt["kept"])),
    )


def reply_head(reply: Reply) -> dict[str, Any]:
    """All of a reply but its payload."""
    return {
        "kind": "reply",
        "client": reply.client,
        "examples": reply.examples,
        "metrics": dict(reply.metrics),
        "error": asdict(reply.error) if reply.error else None,
        "seconds": reply.seconds,
        "state": reply.state,
    }


def read_reply(head: dict[str, Any], body: bytes) -> Reply:
    """The reply again."""
    return Reply(
        client=head["client"],
        up=codec.decode(body),
        examples=head["examples"],
        metrics=head["metrics"],
        error=Failure(**head["error"]) if head["error"] else None,
        seconds=head["seconds"],
        state=head["state"],
    )
