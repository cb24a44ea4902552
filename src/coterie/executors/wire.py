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


class Closed(Exception):
    """The other end of the pipe is closed."""


class Late(Exception):
    """The deadline passed before a complete message arrived."""


def send(descriptor: int, head: dict[str, Any], body: bytes = b"") -> None:
    """Write one message."""
    text = json.dumps(head).encode()
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
    """Reconstruct a task from its message and the broadcast that was sent before it."""
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
    """Describe a reply, without its payload, for the header of a message."""
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
    """Reconstruct a reply from its message."""
    return Reply(
        client=head["client"],
        up=codec.decode(body),
        examples=head["examples"],
        metrics=head["metrics"],
        error=Failure(**head["error"]) if head["error"] else None,
        seconds=head["seconds"],
        state=head["state"],
    )
