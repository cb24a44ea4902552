"""Tasks and replies as messages between machines: a head of JSON, and bundles as bytes.

The broadcast of a round is one `bytes` object that the messages of all clients share. What a task
has for its client alone stands behind it.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.errors import CodecError
from coterie.core.task import Attempt, ClientId, Failure, Reply, Round, Task

_KINDS = frozenset(get_args(get_type_hints(Failure)["kind"]))
_OPS = frozenset(get_args(get_type_hints(Task)["op"]))
_SHA256 = re.compile("[0-9a-f]{64}")
_LONGEST = 2000  # letters of a reason
_TRACE = 20_000
_METRICS = 10_000  # the most that one reply has


def write_task(task: Task, broadcast: bytes) -> tuple[dict[str, Any], bytes]:
    """Write a task whose broadcast is packed already."""
    own = codec.pack(task.own) if task.own is not None else b""
    head = {
        "op": task.op,
        "client": task.client,
        "round": asdict(task.round),
        "program": task.program,
        "attempt": asdict(task.attempt),
        "broadcast": len(broadcast),
        "own": task.own is not None,
    }
    # joined only where it must be: a body that is shared is sent once
    return head | {"key": key_of(head)}, broadcast + own if own else broadcast


def key_of(head: Mapping[str, Any]) -> str:
    """Name a task, so that the same one sent twice is recognised."""
    named = [head[name] for name in ("op", "client", "round", "program")]
    text = json.dumps([named, head["attempt"]["number"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_task(head: Mapping[str, Any], body: bytes, folder: Path) -> Task:
    """Read a task; blobs become files of `folder`. `CodecError` for anything that is no task."""
    try:
        attempt, cut = head["attempt"], head["broadcast"]
        if head["op"] not in _OPS or not isinstance(head["program"], str):
            raise ValueError(f"no task is called {head['op']!r}")
        if type(cut) is not int or not 0 <= cut <= len(body):
            raise ValueError("the broadcast has another length")
        view = memoryview(body)
        return Task(
            head["op"],
            int(head["client"]),
            Round(**head["round"]),
            codec.unpack(view[:cut], folder),
            codec.unpack(view[cut:], folder) if head["own"] else None,
            head["program"],
            Attempt(int(attempt["number"]), int(attempt["first"]), tuple(attempt["kept"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a task: {type(error).__name__}: {error}") from error


def write_reply(reply: Reply) -> tuple[dict[str, Any], bytes]:
    """Write a reply; an upload that cannot be sent becomes a failure."""
    try:
        body = codec.pack(reply.up)
    except CodecError as error:
        failure = Failure("failed", f"its upload cannot be sent: {error}")
        reply, body = Reply(reply.client, error=failure), codec.pack(Bundle())
    return {
        "client": reply.client,
        "examples": reply.examples,
        "metrics": {name: float(value) for name, value in reply.metrics.items()},
        "error": asdict(reply.error) if reply.error is not None else None,
        "seconds": reply.seconds,
        "state": reply.state,
    }, body


def read_reply(head: Mapping[str, Any], body: bytes, client: ClientId, folder: Path) -> Reply:
    """Read the reply of a client; one that is malformed, or for another, is a failure of it."""
    try:
        if head["client"] != client:
            raise ValueError(f"it is from client {head['client']!r}")
        error = _read_failure(head["error"])
        up = codec.unpack(body, folder) if error is None else Bundle()
        examples, seconds, state = head["examples"], head["seconds"], head["state"]
        if type(examples) is not int or not 0 <= examples < 2**53:
            raise ValueError(f"examples = {examples!r:.40}")
        if not (isinstance(state, str) and (not state or _SHA256.fullmatch(state))):
            raise ValueError("state is no digest")
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds = {seconds!r:.40}")
        return Reply(
            client, up, examples, _read_metrics(head["metrics"]), error, float(seconds), state
        )
    except (KeyError, TypeError, ValueError, AttributeError, CodecError) as error:
        reason = f"its answer cannot be read: {error}" if str(error) else "its answer is malformed"
        return Reply(client, error=Failure("failed", reason[:_LONGEST]))


def _read_metrics(given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or len(given) > _METRICS:
        raise ValueError("metrics are no numbers by name")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"the metric {name!r:.60} is {value!r:.40}")
    return {str(name): float(value) for name, value in given.items()}


def _read_failure(given: Any) -> Failure | None:
    if given is None:
        return None
    kind, reason, trace = given["kind"], str(given["reason"]), str(given["trace"])
    if kind not in _KINDS:
        raise ValueError(f"no failure is called {kind!r:.40}")
    if kind == "disk":  # ends a run of which all clients are one's own; here it ends one's part
        kind = "lost"
    return Failure(kind, reason[:_LONGEST], trace[:_TRACE])
