"""Tasks and replies as messages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CodecError
from coterie.core.task import Attempt, Failure, Reply, Round, Task
from coterie.deploy import messages

ROUND = Round(2, 5, "train", 2, 5, 3, 0)
DOWN = Bundle({"model": {"w": torch.arange(3.0)}})


def task(own: Bundle | None = None, number: int = 1) -> Task:
    return Task("update", 1, ROUND, DOWN, own, attempt=Attempt(number, 2, (0, 1)))


@pytest.mark.parametrize("own", [None, Bundle({"means": {"c": torch.ones(2)}})])
def test_a_task_survives_the_journey(own: Bundle | None, tmp_path: Path) -> None:
    head, body = messages.write_task(task(own), codec.pack(DOWN))
    read = messages.read_task(json.loads(json.dumps({"run": "x", **head})), body, tmp_path)
    assert read.down.digest() == DOWN.digest() and read.attempt == Attempt(1, 2, (0, 1))
    assert (read.own.digest() if read.own else None) == (own.digest() if own else None)


def test_tasks_without_a_part_of_their_own_share_the_broadcast() -> None:
    packed = codec.pack(DOWN)
    assert messages.write_task(task(), packed)[1] is packed


def test_a_key_tells_tasks_and_attempts_apart() -> None:
    first, again, other = (messages.write_task(task(number=n), b"")[0]["key"] for n in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("change", [{"broadcast": 10**9}, {"broadcast": "3"}, {"op": "run"}])
def test_what_is_no_task_is_one_kind_of_error(change: dict[str, Any], tmp_path: Path) -> None:
    head, body = messages.write_task(task(), codec.pack(DOWN))
    with pytest.raises(CodecError):
        messages.read_task({**head, **change}, body, tmp_path)


def test_a_reply_brings_its_arrays_with_it(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    blob = Blob.write(tmp_path / "theirs" / "b", [np.arange(6.0).reshape(3, 2)])
    sent = Reply(1, Bundle(blobs={"codes": blob}), 3, {"loss": 0.5}, seconds=1.0)
    head, body = messages.write_reply(sent)
    read = messages.read_reply(json.loads(json.dumps(head)), body, task(), tmp_path / "ours")
    assert read.error is None and read.metrics == {"loss": 0.5}
    assert read.up.blobs["codes"].path.parent == tmp_path / "ours"
    assert np.array_equal(read.up.blobs["codes"].open(), np.arange(6.0).reshape(3, 2))


@pytest.mark.parametrize(
    "change",
    [{"client": 2}, {"examples": "5"}, {"metrics": [1]}, {"error": "x"}, {"state": "../x"}],
)
def test_a_malformed_reply_is_a_failure_of_its_client(
    change: dict[str, Any], tmp_path: Path
) -> None:
    head, body = messages.write_reply(Reply(1, DOWN, 3))
    read = messages.read_reply({**head, **change}, body, task(), tmp_path)
    assert read.client == 1 and read.error is not None and read.error.kind == "failed"


def test_rubbish_is_a_failure_of_its_client(tmp_path: Path) -> None:
    head, _ = messages.write_reply(Reply(1, DOWN, 3))
    read = messages.read_reply(head, b"rubbish", task(), tmp_path)
    assert read.error is not None and "damaged" in read.error.reason


def test_a_full_disk_at_a_site_does_not_end_the_run(tmp_path: Path) -> None:
    head, body = messages.write_reply(Reply(1, error=Failure("disk", "no space")))
    read = messages.read_reply(head, body, task(), tmp_path)
    assert read.error == Failure("lost", "no space")
