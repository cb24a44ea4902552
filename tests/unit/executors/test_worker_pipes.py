"""One worker process as the executor sees it: what goes through its pipes, and how it ends."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from test_processes import DOWN, ROUND, SHARES, SPEC, task

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.errors import RunFailed
from coterie.core.task import Reply, Task
from coterie.data.partition import Partition
from coterie.engine.spec import Spec
from coterie.executors import launch, processes, wire
from coterie.executors.processes import Worker


class Piped:
    """A process that is two pipes; this side may read what was written to it, and answer."""

    def __init__(self) -> None:
        (self.inbox, to), (back, self.outbox) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(to, "wb", 0), os.fdopen(back, "rb", 0)
        self.pid, self.returncode, self.waited = 0, None, False

    def say(self, head: dict[str, Any], body: bytes = b"") -> None:
        wire.send(self.outbox, head, body)

    def hear(self) -> tuple[dict[str, Any], bytes]:
        return wire.receive(self.inbox, 0.0)

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.returncode = -9  # type: ignore[assignment]

    def wait(self) -> None:
        self.waited = True


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Piped]:
    """The process behind the next worker."""
    process = Piped()
    monkeypatch.setattr(launch, "start", lambda environment: process)
    yield process
    for pipe in (process.stdin, process.stdout):
        pipe.close()
    for handle in (process.inbox, process.outbox):
        os.close(handle)


def test_a_worker_is_told_the_spec_and_the_partition_once(piped: Piped) -> None:
    worker = Worker(SPEC, SHARES)
    piped.say({"kind": "ready"})
    worker.prepare()
    worker.prepare()
    head, body = piped.hear()
    assert Spec.from_json(head["spec"]) == SPEC
    arrays = {name: tensor.numpy() for name, tensor in codec.decode(body)["partition"].items()}
    assert Partition.unpack(arrays, head["names"]).digest() == SHARES.digest()
    with pytest.raises(wire.Late):
        piped.hear()


def test_a_worker_that_failed_at_its_start_says_why(piped: Piped) -> None:
    piped.say({"kind": "failed", "reason": "KeyError: 'net'"})
    with pytest.raises(RunFailed, match="KeyError: 'net'"):
        Worker(SPEC, SHARES).prepare()


def test_a_worker_that_is_never_ready_ends_the_run(
    piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_START_SECONDS", -1.0)
    with pytest.raises(RunFailed, match="not ready"):
        Worker(SPEC, SHARES).prepare()


def test_a_worker_gets_a_broadcast_once_and_then_only_tasks(piped: Piped) -> None:
    worker, other = Worker(SPEC, SHARES), Bundle()
    tasks = [task(1), task(2), task(0, other)]
    for one in tasks:
        piped.say(wire.reply_head(Reply(one.client, examples=3)), codec.encode(DOWN))
    replies = [worker.ask(one, codec.encode(one.down), None) for one in tasks]
    assert [reply.client for reply in replies] == [1, 2, 0]
    assert replies[0].up.digest() == DOWN.digest()
    heard = [piped.hear() for _ in range(5)]
    assert [head["kind"] for head, _ in heard] == ["down", "task", "task", "down", "task"]
    assert codec.decode(heard[0][1]).digest() == DOWN.digest()
    assert [heard[place][0]["client"] for place in (1, 2, 4)] == [1, 2, 0]


def test_a_task_carries_what_its_client_alone_is_sent(piped: Piped) -> None:
    piped.say(wire.reply_head(Reply(1)), codec.encode(Bundle()))
    Worker(SPEC, SHARES).ask(Task("update", 1, ROUND, DOWN, DOWN), b"", None)
    _, (head, body) = piped.hear(), piped.hear()
    assert wire.read_task(head, body, DOWN).own is not None


def test_ending_a_worker_kills_and_reaps_it_and_closes_its_pipes(piped: Piped) -> None:
    worker = Worker(SPEC, SHARES)
    worker.end()
    worker.end()
    assert piped.returncode == -9 and piped.waited
    assert piped.stdin.closed and piped.stdout.closed


def test_a_worker_has_one_thread_for_every_library(
    piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(launch, "start", lambda given: environments.append(given) or piped)
    Worker(SPEC, SHARES)
    (given,) = environments
    assert given["OMP_NUM_THREADS"] == "1"
