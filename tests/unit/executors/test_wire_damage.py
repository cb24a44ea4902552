"""Damaged messages: a `CodecError` before anything is allocated, whatever is wrong with them."""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CodecError
from coterie.core.schema import Schema
from coterie.core.task import Failure, Reply, Round, Task
from coterie.executors import wire

ROUND = Round(3, 10, "train", 1, 5, 4, seed=7)
UP = Bundle({"model": {"w": torch.tensor([1.5, -2.0])}}, {"n": 3})
FORM = Schema({"model": {"w": ("float32", (2,))}})
TASK = Task("update", 2, ROUND, Bundle(), expected=FORM)
REPLY = Reply(2, UP, 60, {"loss": 0.1}, None, 1.25, "ab" * 32)
DEEP = b"[" * 100_000


def as_sent(value: Any) -> Any:
    """A head as it arrives: dataclasses are objects of JSON."""
    return json.loads(json.dumps(value, default=wire.asdict))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"{}", b'{"kind": 1}', b'{"kind":"a","kind":"b"}', b"\xff", DEEP],
)
def test_a_damaged_head_is_a_codec_error(text: bytes, pipe: tuple[int, int]) -> None:
    source, sink = pipe
    if len(text) < 1000:  # a pipe takes no more at once
        os.write(sink, struct.pack("<IQ", len(text), 0) + text)
        with pytest.raises(CodecError, match="not a message"):
            wire.receive(source)
    with pytest.raises(CodecError, match="not a message"):
        wire.read_head(text)


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0), (2, 2**64 - 1), (2**22 + 1, 5)])
def test_lengths_are_capped_before_anything_is_read(
    lengths: tuple[int, int], pipe: tuple[int, int]
) -> None:
    source, sink = pipe
    os.write(sink, struct.pack("<IQ", *lengths) + b"{}")
    with pytest.raises(CodecError, match="too large"):
        wire.receive(source)
    assert os.read(source, 9) == b"{}"


REPLIES: dict[str, dict[str, Any]] = {
    "a client that is text": {"client": "2"},
    "another client": {"client": 3},
    "a client that is true": {"client": True},
    "samples that are text": {"examples": "5"},
    "samples that are true": {"examples": True},
    "half a sample": {"examples": 0.5},
    "samples that are not a number": {"examples": float("nan")},
    "metrics that are a list": {"metrics": [1]},
    "a metric that is text": {"metrics": {"loss": "0"}},
    "a metric that is null": {"metrics": {"loss": None}},
    "a metric without end": {"metrics": {"loss": 10**4000}},
    "too many metrics": {"metrics": {str(k): 0.0 for k in range(10_001)}},
    "an error that is text": {"error": "failed"},
    "an error of an unknown kind": {"error": {"kind": "sad", "reason": "", "trace": ""}},
    "an error that only we can find": {"error": {"kind": "refused", "reason": "", "trace": ""}},
    "an error with more": {"error": {"kind": "lost", "reason": "", "trace": "", "x": 1}},
    "an error without a reason": {"error": {"kind": "lost", "trace": ""}},
    "a reason that is a number": {"error": {"kind": "lost", "reason": 1, "trace": ""}},
    "seconds without end": {"seconds": float("inf")},
    "seconds that are null": {"seconds": None},
    "a state that is a path": {"state": "../../x"},
    "an unknown field": {"up": 1},
}


@pytest.mark.parametrize("changes", REPLIES.values(), ids=REPLIES)
def test_replies_with_wrong_fields(changes: dict[str, Any]) -> None:
    head = as_sent(wire.reply_head(REPLY))
    assert wire.read_reply(head, codec.encode(UP), TASK).up.digest() == UP.digest()
    with pytest.raises(CodecError, match="not a message"):
        wire.read_reply(head | changes, codec.encode(UP), TASK)


TASKS: dict[str, dict[str, Any]] = {
    "an unknown operation": {"op": "delete"},
    "a client below zero": {"client": -1},
    "a round that is a number": {"round": 3},
    "a round of other fields": {"round": {"index": 3}},
    "a round that is text": {"round": as_sent(wire.asdict(ROUND)) | {"index": "3"}},
    "an attempt without its fields": {"attempt": {}},
    "kept rounds that are text": {"attempt": {"number": 1, "first": 0, "kept": ["a"]}},
    "a program that is null": {"program": None},
    "a flag that is a number": {"own": 1},
    "more than a task": {"code": "print()"},
}


@pytest.mark.parametrize("changes", TASKS.values(), ids=TASKS)
def test_tasks_with_wrong_fields(changes: dict[str, Any]) -> None:
    head = as_sent(wire.task_head(TASK))
    assert wire.read_task(head, b"", TASK.down) == replace(TASK, expected=None)
    with pytest.raises(CodecError, match="not a message"):
        wire.read_task(head | changes, b"", Bundle())


@pytest.mark.parametrize("missing", ["client", "examples", "metrics", "error", "seconds", "state"])
def test_a_reply_without_a_field(missing: str) -> None:
    head = as_sent(wire.reply_head(REPLY))
    del head[missing]
    with pytest.raises(CodecError, match="does not have the fields"):
        wire.read_reply(head, codec.encode(UP), TASK)


def test_an_upload_that_looks_wrong_is_refused_undecoded_and_counted() -> None:
    wide = Bundle({"model": {"w": torch.ones(5)}}, {"n": 3})
    head = as_sent(wire.reply_head(REPLY))
    found = wire.read_reply(head, codec.encode(wide), TASK)
    reason = "model/w is float32 [5], not float32 [2]"
    assert found.error == Failure("refused", reason, nbytes=wide.nbytes())
    assert (found.client, found.state, found.up.tensors) == (2, REPLY.state, {})


def test_an_upload_with_a_header_that_is_far_too_long_is_refused() -> None:
    many = Bundle({"model": {str(k): torch.ones(0) for k in range(2000)}})
    found = wire.read_reply(as_sent(wire.reply_head(REPLY)), codec.encode(many), TASK)
    assert found.error is not None and found.error.kind == "refused"
    assert "far more than expected" in found.error.reason


def test_a_reply_with_an_error_needs_no_upload() -> None:
    failed = Reply(2, error=Failure("failed", "a bug", "Traceback ..."))
    head = as_sent(wire.reply_head(failed))
    assert wire.read_reply(head, codec.encode(Bundle()), TASK).error == failed.error


def test_a_damaged_upload_is_a_codec_error() -> None:
    with pytest.raises(CodecError, match="not a bundle"):
        wire.read_reply(as_sent(wire.reply_head(REPLY)), codec.encode(UP)[:-1], TASK)


def test_another_way_to_decode_serves_other_machines(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "sent", [np.ones((3, 2), np.float32)])
    up = Bundle(blobs={"rows": blob})
    head = as_sent(wire.reply_head(Reply(2, up, 60)))
    task = replace(TASK, expected=None)
    found = wire.read_reply(
        head,
        codec.pack(up),
        task,
        lambda body, limits, expected: codec.unpack(body, tmp_path / "got", limits, expected),
    )
    assert found.up.digest() == up.digest()
    assert found.up.blobs["rows"].path.parent == tmp_path / "got"
