"""Messages between the main process and its workers: a JSON header, then an encoded bundle.

4 bytes header length | 8 bytes body length | header | body (coterie.core.codec)

Lengths are compared with caps before anything is read. A message that is not what it should be is
a `CodecError`: the pipe cannot be trusted any more, so the worker is replaced and its task is
repeated, as if it had died. A whole reply whose upload does not look as expected is a reply with
the failure `refused`; its tensors are not even decoded.
"""

import json
import math
import os
import re
import select
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, get_args

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.codec import Limits
from coterie.core.errors import CodecError
from coterie.core.header import MALFORMED, parse_json
from coterie.core.schema import Schema
from coterie.core.task import MOST_METRICS, Attempt, Failure, Operation, Problem, Reply, Round, Task

_PREFIX = struct.Struct("<IQ")
_BUFFER = 1 << 20
_TASK_FIELDS = ("op", "client", "round", "program", "attempt")  # all but the payloads
_REPLY_FIELDS = ("client", "examples", "metrics", "error", "seconds", "state")
_FAILURE_FIELDS = ("kind", "reason", "trace")
_SHA256 = re.compile("([0-9a-f]{64})?")
HEAD_LIMIT = 1 << 22  # bytes of JSON from a worker or client: metrics, a reason, a traceback
HELLO_LIMIT = 1 << 28  # the same from the main process: the first message has all clients' names

Decode = Callable[[bytes, Limits, Schema | None], Bundle]


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


def receive(
    descriptor: int,
    deadline: float | None = None,
    head_limit: int = HEAD_LIMIT,
    body_limit: int = codec.DEFAULT.total,
) -> tuple[dict[str, Any], bytes]:
    """Read one message, waiting at most until the deadline, a time of `time.monotonic`.

    `CodecError` for lengths above the limits, and for a header that is no JSON object.
    """
    head_size, body_size = _PREFIX.unpack(_read_exactly(descriptor, _PREFIX.size, deadline))
    if head_size > head_limit or body_size > body_limit:
        raise CodecError(f"a message of {head_size} and {body_size} bytes is too large")
    head = read_head(_read_exactly(descriptor, head_size, deadline))
    return head, _read_exactly(descriptor, body_size, deadline)


def read_head(text: bytes) -> dict[str, Any]:
    """Parse the header of a message; `CodecError` if it is no JSON object with a kind."""
    try:
        head = parse_json(text)
    except MALFORMED as error:
        raise CodecError(f"not a message: {type(error).__name__}: {error}") from error
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
        raise CodecError("not a message: its header has no kind")
    return head


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
    values = {name: getattr(task, name) for name in _TASK_FIELDS}
    return {"kind": "task", **values, "own": task.own is not None}


def read_task(
    head: dict[str, Any], body: bytes, down: Bundle, decode: Decode = codec.decode
) -> Task:
    """Reconstruct a task from its message and the broadcast that was sent before it."""
    _check_keys(head, ("kind", *_TASK_FIELDS, "own"), "task")
    round, attempt = head["round"], head["attempt"]
    _check_keys(round, tuple(field.name for field in fields(Round)), "round")
    _check_keys(attempt, tuple(field.name for field in fields(Attempt)), "attempt")
    _check(head["op"] in get_args(Operation), "op", head["op"])
    _check(_is_whole(head["client"]), "client", head["client"])
    _check(type(head["program"]) is str and type(head["own"]) is bool, "program", head["program"])
    for name, value in round.items():
        _check(type(value) is str if name == "stage" else _is_whole(value), name, value)
    kept = attempt["kept"]
    _check(type(kept) is list and all(map(_is_whole, kept)), "kept", kept)
    _check(_is_whole(attempt["number"]) and _is_whole(attempt["first"]), "attempt", attempt)
    values = {name: head[name] for name in _TASK_FIELDS}
    values["round"] = Round(**round)
    values["attempt"] = Attempt(attempt["number"], attempt["first"], tuple(kept))
    own = decode(body, codec.OWN, None) if head["own"] else None
    return Task(**values, down=down, own=own)


def reply_head(reply: Reply) -> dict[str, Any]:
    """Describe a reply, without its payload, for the header of a message."""
    head = {"kind": "reply", **{name: getattr(reply, name) for name in _REPLY_FIELDS}}
    if reply.error is not None:
        head["error"] = {name: getattr(reply.error, name) for name in _FAILURE_FIELDS}
    return head


def read_reply(
    head: dict[str, Any], body: bytes, task: Task | None = None, decode: Decode = codec.decode
) -> Reply:
    """Reconstruct the reply to a task from its message; `CodecError` for anything else.

    The upload is compared with `task.expected` before it is decoded. `decode` is `codec.decode`
    between processes of one machine; between machines it is a function that calls `codec.unpack`.
    """
    _check_keys(head, ("kind", *_REPLY_FIELDS), "reply")
    client, metrics, seconds, error = (head[n] for n in ("client", "metrics", "seconds", "error"))
    _check(_is_whole(client) and (task is None or client == task.client), "client", client)
    _check(type(head["examples"]) is int, "examples", head["examples"])
    _check(
        type(metrics) is dict and len(metrics) <= MOST_METRICS, "metrics", type(metrics).__name__
    )
    for name, value in metrics.items():
        _check(type(value) in (int, float), name, value)
    _check(type(seconds) in (int, float) and math.isfinite(seconds), "seconds", seconds)
    _check(type(head["state"]) is str and bool(_SHA256.fullmatch(head["state"])), "state", "")
    values = {name: head[name] for name in _REPLY_FIELDS}
    values["metrics"] = {name: _to_float(name, value) for name, value in metrics.items()}
    if error is not None:
        _check_keys(error, _FAILURE_FIELDS, "error")
        _check(all(type(text) is str for text in error.values()), "error", error)
        _check(error["kind"] in get_args(Problem) and error["kind"] != "refused", "error", error)
        values["error"] = Failure(**error)
    expected = None if task is None or error is not None else task.expected
    try:
        up = decode(body, codec.DEFAULT, expected)
    except codec.Mismatch as mismatch:
        values["error"] = Failure("refused", str(mismatch), nbytes=mismatch.nbytes)
        return Reply(**values)
    return Reply(**values, up=up)


def _check_keys(value: Any, keys: tuple[str, ...], what: str) -> None:
    if not isinstance(value, dict) or value.keys() != set(keys):
        raise CodecError(f"not a message: its {what} does not have the fields {', '.join(keys)}")


def _check(right: bool, name: str, value: Any) -> None:
    if not right:
        raise CodecError(f"not a message: {name!r:.60} is {value!r:.60}")


def _is_whole(value: Any) -> bool:
    """Whether a value is a number of clients, rounds and the like; seeds have at most 64 bits."""
    return type(value) is int and 0 <= value < 2**64


def _to_float(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise CodecError(f"not a message: {name!r:.60} is too large") from None
