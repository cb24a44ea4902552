"""The executor over worker processes, with workers that are scripted objects of this process."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.errors import CodecError, RunFailed
from coterie.core.registry import Component
from coterie.core.settings import Local, NetSettings
from coterie.core.task import Failure, Reply, Round, Task
from coterie.data.partition import Partition
from coterie.engine.cohort import list_clients
from coterie.engine.spec import Spec
from coterie.executors import pool, processes, wire
from coterie.executors.pool import Ending
from coterie.executors.processes import Processes

DOWN = Bundle({"model": {"w": torch.tensor([1.0])}})
ROUND = Round(0, 1, "train", 0, 1, 3, seed=7)
SIZES = {0: 10, 1: 30, 2: 20}
SHARES = Partition({client: np.arange(size) for client, size in SIZES.items()}, {0: np.arange(9)})
ANY = Component("builtins:object", {})
SPEC = Spec(7, "", (2,), 2, "none", NetSettings(), Local(), ANY, ANY, {}, "", device="cpu")

Script = Callable[["Scripted", Task], Reply]


def task(client: int = 0, down: Bundle = DOWN, op: Any = "update") -> Task:
    return Task(op, client, ROUND, down)


def answer(worker: "Scripted", task: Task) -> Reply:
    return Reply(task.client)


@dataclass
class Office:
    """Makes scripted workers and remembers them, and what they were asked."""

    script: Script = answer
    status: int | None = 7  # the exit status of those that die
    workers: list["Scripted"] = field(default_factory=list)
    asked: list[Task] = field(default_factory=list)

    def __call__(self, spec: Spec, partition: Partition) -> "Scripted":
        worker = Scripted(self, spec)
        self.workers.append(worker)
        return worker


class Scripted:
    """A worker that answers as a script says."""

    def __init__(self, office: Office, spec: Spec) -> None:
        self.office, self.spec = office, spec
        self.killed, self.ended = threading.Event(), False
        self.broadcasts: list[bytes] = []
        self.deadlines: list[float | None] = []

    def prepare(self) -> None:
        pass

    def ask(self, task: Task, broadcast: bytes, deadline: float | None) -> Reply:
        self.office.asked.append(task)
        self.broadcasts.append(broadcast)
        self.deadlines.append(deadline)
        return self.office.script(self, task)

    def kill(self) -> None:
        self.killed.set()

    def end(self) -> Ending:
        self.kill()
        self.ended = True
        status = self.office.status
        return Ending(f"last exit status {status}", killed=status == -9)


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    """The scripted workers that an executor gets from now on."""
    made = Office()
    monkeypatch.setattr(processes, "Worker", made)
    return made


def make(workers: int = 1, **options: Any) -> Processes:
    return Processes(SPEC, SHARES, workers=workers, **options)


def die(worker: Scripted, task: Task) -> Reply:
    raise wire.Closed("end of file")


def clients(replies: Iterator[Reply]) -> list[int]:
    return [reply.client for reply in replies]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_replies_come_in_the_order_of_the_tasks(workers: int, office: Office) -> None:
    order = [2, 0, 1, 1, 0, 2, 0]
    executor = make(workers)
    assert clients(executor.run(map(task, order))) == order
    assert clients(executor.run(map(task, [1, 2]))) == [1, 2]  # it can be used again
    executor.close()


def test_no_task_is_no_reply(office: Office) -> None:
    assert clients(make().run([])) == []


def test_the_largest_task_goes_first(office: Office) -> None:
    clients(make().run(map(task, SIZES)))
    assert [task.client for task in office.asked] == [1, 2, 0]


def test_an_evaluation_is_as_large_as_its_test_samples(office: Office) -> None:
    clients(make().run(task(client, op="evaluate") for client in (1, 2, 0)))
    assert [task.client for task in office.asked] == [0, 1, 2]  # client 0 alone holds some


@pytest.mark.parametrize(("room", "ahead"), [(1, 2), (3 * DOWN.nbytes(), 3), (2**20, 32)])
def test_tasks_are_drawn_only_so_far_ahead_as_their_replies_fit_into_memory(
    room: int, ahead: int, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_AHEAD_BYTES", room)
    drawn, handed_on, at_first = 0, 0, []

    def tasks() -> Iterator[Task]:
        nonlocal drawn
        for _ in range(40):
            assert drawn <= handed_on + ahead  # one may be on its way to the reader
            drawn += 1
            yield task()

    def look(worker: Scripted, task: Task) -> Reply:
        at_first.append(drawn)
        return Reply(task.client)

    office.script = look
    for _ in make().run(tasks()):
        handed_on += 1
    assert at_first[0] == ahead
    assert handed_on == 40


def test_a_broadcast_is_encoded_once_for_all_workers(office: Office) -> None:
    other = Bundle({"model": {"w": torch.tensor([2.0])}})
    executor = make(2)
    clients(executor.run([task(0), task(1), task(2)]))
    clients(executor.run([task(0, other)]))
    sent = {id(broadcast) for worker in office.workers for broadcast in worker.broadcasts}
    assert len(sent) == 2
    contents = {
        codec.decode(data)["model"]["w"].item() for w in office.workers for data in w.broadcasts
    }
    assert contents == {1.0, 2.0}


def test_the_task_of_a_worker_that_died_is_done_again_by_another(office: Office) -> None:
    def once(worker: Scripted, task: Task) -> Reply:
        return die(worker, task) if worker is office.workers[0] else Reply(task.client, examples=5)

    office.script = once
    (reply,) = make().run([task(2)])
    assert (reply.client, reply.examples, reply.error) == (2, 5, None)
    assert [worker.ended for worker in office.workers] == [True, False]


@pytest.mark.parametrize(
    ("status", "words"),
    [(7, "exit status 7"), (None, "exit status None"), (-9, "memory")],
)
def test_a_client_whose_workers_die_three_times_is_lost_and_the_others_are_not(
    status: int | None, words: str, office: Office
) -> None:
    office.status = status
    office.script = lambda worker, task: (
        die(worker, task) if task.client == 1 else Reply(task.client)
    )
    replies = list(make(2).run(map(task, [0, 1, 2])))
    assert [reply.client for reply in replies] == [0, 1, 2]
    assert [reply.error is None for reply in replies] == [True, False, True]
    failure = replies[1].error
    assert failure is not None and failure.kind == "lost"
    assert "3 times" in failure.reason and words in failure.reason
    assert [task.client for task in office.asked].count(1) == 3


def test_a_worker_that_sends_a_damaged_reply_counts_as_dead(office: Office) -> None:
    def script(worker: Scripted, task: Task) -> Reply:
        if task.client == 1:
            raise CodecError("not a message: its header has no kind")
        return answer(worker, task)

    office.script = script
    replies = list(make(2).run(task(client) for client in SIZES))
    assert [reply.client for reply in replies] == [0, 1, 2]
    assert replies[1].error is not None and replies[1].error.kind == "lost"
    assert "damaged reply: not a message: its header has no kind" in replies[1].error.reason
    assert [reply.error for reply in (replies[0], replies[2])] == [None, None]


def test_a_client_without_memory_is_tried_again_in_a_fresh_process_and_then_lost(
    office: Office,
) -> None:
    short = Failure("lost", "out of memory")
    office.script = lambda worker, task: Reply(task.client, error=short)
    (reply,) = make().run([task(1)])
    assert reply.error == short
    assert len(office.asked) == 3
    assert [worker.ended for worker in office.workers] == [True, True, False]


def test_a_failure_of_the_clients_own_work_is_not_tried_again(office: Office) -> None:
    office.script = lambda worker, task: Reply(task.client, error=Failure("failed", "a bug"))
    (reply,) = make().run([task(1)])
    assert reply.error is not None and reply.error.kind == "failed"
    assert len(office.asked) == len(office.workers) == 1


def test_a_task_that_is_done_again_waits_until_it_is_alone(office: Office) -> None:
    busy, settled, running, seen = threading.Event(), threading.Event(), set(), []

    class Told(threading.Condition):
        """Tells when somebody has to wait."""

        def wait_for(self, predicate: Any, timeout: float | None = None) -> Any:
            if not predicate():
                settled.set()
            return super().wait_for(predicate, timeout)

    def watch(worker: Scripted, task: Task) -> Reply:
        running.add(task.client)
        if task.client == 2:
            busy.set()
            settled.wait()  # until the other one waits for us, or does not
        elif worker in office.workers[:2]:
            busy.wait()
            return die(worker, task)
        else:
            seen.append(set(running))
            settled.set()
        running.discard(task.client)
        return Reply(task.client)

    office.script = watch
    executor = make(2)
    executor._pool._gate._condition = Told()
    assert clients(executor.run(map(task, [1, 2]))) == [1, 2]
    assert seen == [{1}]


def test_a_client_without_an_answer_in_time_is_late_and_its_worker_replaced(
    office: Office,
) -> None:
    def hang(worker: Scripted, task: Task) -> Reply:
        if task.client == 1:
            raise wire.Late
        return Reply(task.client)

    office.script = hang
    replies = list(make(timeout=2.0).run(map(task, [1, 0])))
    failure = replies[0].error
    assert failure is not None and failure.kind == "late"
    assert "executor.timeout = 2" in failure.reason
    assert replies[1].error is None
    assert [worker.ended for worker in office.workers] == [True, False]
    assert [task.client for task in office.asked] == [1, 0]  # it is not tried again


def test_a_task_has_a_deadline_only_if_there_is_a_timeout(office: Office) -> None:
    clients(make().run([task()]))
    clients(make(timeout=2.0).run([task()]))
    unlimited, limited = (worker.deadlines for worker in office.workers)
    assert unlimited == [None]
    assert limited[0] is not None


def test_a_worker_that_cannot_start_ends_the_run(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(worker: Scripted) -> None:
        raise RunFailed("a worker could not start: no data")

    monkeypatch.setattr(Scripted, "prepare", refuse)
    with pytest.raises(RunFailed, match="no data"):
        list(make(2).run(map(task, SIZES)))
    assert all(worker.killed.is_set() for worker in office.workers)


def test_an_error_of_whoever_makes_the_tasks_reaches_the_reader(office: Office) -> None:
    def tasks() -> Iterator[Task]:
        yield task(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(make().run(tasks()))


def test_a_reader_that_stops_early_ends_the_workers(office: Office) -> None:
    busy = threading.Event()

    def hang(worker: Scripted, task: Task) -> Reply:
        if task.client == 1:
            return Reply(task.client)
        busy.set()
        worker.killed.wait()
        raise wire.Closed("killed")

    office.script = hang
    executor = make(2)
    replies = executor.run(map(task, [1, 2, 0]))
    assert next(replies).client == 1
    busy.wait()
    replies.close()  # type: ignore[attr-defined]
    assert all(worker.killed.is_set() for worker in office.workers)
    assert len(office.workers) == 2  # nobody was replaced
    executor.close()


def test_an_interrupt_while_threads_are_started_ends_the_workers(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        begun.append(thread)
        if len(begun) == 2:
            raise KeyboardInterrupt
        begin(thread)

    executor = make(3)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(executor.run(map(task, SIZES)))
    assert all(worker.killed.is_set() for worker in office.workers)
    executor.close()


def test_closing_ends_every_worker_and_may_be_repeated(office: Office) -> None:
    executor = make(3)
    clients(executor.run(map(task, SIZES)))
    for _ in range(2):
        executor.close()
    assert all(worker.ended for worker in office.workers)


def test_workers_that_were_started_are_ended_if_another_cannot_be(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(spec: Spec, partition: Partition) -> Scripted:
        if office.workers:
            raise RunFailed("no more processes")
        return office(spec, partition)

    monkeypatch.setattr(processes, "Worker", start)
    with pytest.raises(RunFailed, match="no more processes"):
        make(2)
    assert [worker.ended for worker in office.workers] == [True]


def test_workers_share_the_devices_in_turn(office: Office) -> None:
    make(3, devices=["cuda:0", "cuda:1"])
    assert [worker.spec.device for worker in office.workers] == ["cuda:0", "cuda:1", "cuda:0"]
    make(1)
    assert office.workers[-1].spec.device == "cpu"


def test_clients_are_those_it_was_told(office: Office) -> None:
    assert make().clients() == list_clients(SHARES)
