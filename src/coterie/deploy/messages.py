"""Tasks and replies as messages between machines: a head of JSON, and bundles as bytes.

The heads are those between processes (`executors/wire.py`), and are checked there. The broadcast of
a round is one `bytes` object that the messages of all clients share; what a task has for its client
alone stands behind it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.codec import Limits
from coterie.core.errors import CodecError
from coterie.core.schema import Schema
from coterie.core.task import Failure, Reply, Task
from coterie.executors import wire

_OWN_FIELDS = ("broadcast", "key", "run")  # of a task's head, beside those between processes
_LONGEST, _TRACE = 2000, 20_000  # letters


def write_task(task: Task, broadcast: bytes) -> tuple[dict[str, Any], bytes]:
    """Write a task whose broadcast is packed already."""
    own = codec.pack(task.own) if task.own is not None else b""
    head = _to_plain(wire.task_head(task))
    # joined only where it must be: a body that is shared is sent once
    body = broadcast + own if own else broadcast
    return head | {"broadcast": len(broadcast), "key": key_of(head)}, body


def key_of(head: Mapping[str, Any]) -> str:
    """Name a task, so that the same one sent twice is recognised."""
    named = [head[name] for name in ("op", "client", "round", "program")]
    text = json.dumps([named, head["attempt"]["number"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_task(head: Mapping[str, Any], body: bytes, folder: Path) -> Task:
    """Read a task; blobs become files of `folder`. `CodecError` for anything that is no task."""
    cut = head.get("broadcast")
    if type(cut) is not int or not 0 <= cut <= len(body):
        raise CodecError("not a task: its broadcast has another length")
    down = codec.unpack(memoryview(body)[:cut], folder)
    rest = {name: value for name, value in head.items() if name not in _OWN_FIELDS}
    return wire.read_task(rest, body[cut:], down, partial(_unpack, folder))


def write_reply(reply: Reply) -> tuple[dict[str, Any], bytes]:
    """Write a reply; an upload that cannot be sent becomes a failure."""
    try:
        body = codec.pack(reply.up)
    except CodecError as error:
        failure = Failure("failed", f"its upload cannot be sent: {error}")
        reply, body = Reply(reply.client, error=failure), codec.pack(Bundle())
    return _to_plain(wire.reply_head(reply)), body


def read_reply(head: Mapping[str, Any], body: bytes, task: Task, folder: Path) -> Reply:
    """Read the reply to a task; one that is malformed is a failure of that client."""
    try:
        reply = wire.read_reply(dict(head), body, task, partial(_unpack, folder))
    except CodecError as error:
        return Reply(task.client, error=Failure("failed", f"a damaged reply: {error}"[:_LONGEST]))
    if (failure := reply.error) is None:
        return reply
    # a full disk ends a run whose clients are all on one machine; here it ends one client's part
    kind = "lost" if failure.kind == "disk" else failure.kind
    reason, trace = failure.reason[:_LONGEST], failure.trace[:_TRACE]
    return replace(reply, error=Failure(kind, reason, trace, nbytes=failure.nbytes))


def _unpack(folder: Path, data: Any, limits: Limits, expected: Schema | None) -> Bundle:
    return codec.unpack(data, folder, limits, expected)


def _to_plain(head: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(head, default=asdict))
    return plain
