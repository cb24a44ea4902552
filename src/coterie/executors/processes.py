"""An executor with worker processes on this machine, one torch thread each.

One thread per worker sends it tasks. Replies are yielded in the order of the tasks. The largest
of the tasks that may start goes first, so that all workers finish a round at about the same time.
Tasks start only so far ahead of the yielded replies that these fit into `_AHEAD_BYTES`, so that
memory does not grow with the cohort. If a worker dies, it is replaced and its task is repeated
while no other task runs, in case memory ran out. After two more deaths the client is lost. A worker
that sends a damaged message counts as dead: what follows in its pipe cannot be trusted.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from coterie.core import codec
from coterie.core.bundle import Bundle, Payload
from coterie.core.errors import CodecError, RunFailed
from coterie.core.exact import THREAD_VARIABLES
from coterie.core.task import ClientInfo, Failure, Reply, Task
from coterie.data.partition import Partition
from coterie.engine.cohort import list_clients
from coterie.engine.spec import Spec
from coterie.executors import launch, wire

_RETRIES = 2
_START_SECONDS = 300.0
_AHEAD_BYTES = 64 * 2**20
_AHEAD_MOST = 32  # tasks


class Worker:
    """One worker process, and what has been sent to it."""

    def __init__(self, spec: Spec, partition: Partition) -> None:
        self.process = launch.start({**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")})
        assert self.process.stdin is not None and self.process.stdout is not None
        self._to, self._from = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._hello = (
            {"kind": "hello", "spec": spec.to_json(), "names": list(partition.names)},
            Bundle({"partition": {n: torch.from_numpy(a) for n, a in partition.pack().items()}}),
        )
        self._ready = False
        self._down: Payload | None = None

    def prepare(self) -> None:
        """Send the specification once, and wait until the worker has its data and networks."""
        if self._ready:
            return
        wire.send(self._to, self._hello[0], codec.encode(self._hello[1]))
        try:
            head, _ = wire.receive(self._from, time.monotonic() + _START_SECONDS)
        except wire.Late:
            raise RunFailed(f"a worker was not ready after {_START_SECONDS:g} s") from None
        if head["kind"] != "ready":
            raise RunFailed(f"a worker could not start: {head.get('reason', head)}")
        self._ready = True

    def ask(self, task: Task, broadcast: bytes, deadline: float | None) -> Reply:
        """Send the broadcast if this worker does not have it yet, then the task."""
        if self._down is not task.down:
            wire.send(self._to, {"kind": "down"}, broadcast)
            self._down = task.down
        own = codec.encode(task.own) if task.own is not None else b""
        wire.send(self._to, wire.task_head(task), own)
        return wire.read_reply(*wire.receive(self._from, deadline), task)

    def kill(self) -> None:
        """Kill the process; its files are written atomically, so none is left incomplete."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill the process and close its pipes, which no other thread may be using."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class _Gate:
    """A lock that admits many tasks at once, or a single one alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = self._waiting_alone = 0

    @contextmanager
    def enter(self, alone: bool) -> Iterator[None]:
        with self._condition:
            self._waiting_alone += alone
            self._condition.wait_for(lambda: not (self._running if alone else self._waiting_alone))
            self._running += 1
        try:
            yield
        finally:
            with self._condition:
                self._running -= 1
                self._waiting_alone -= alone
                self._condition.notify_all()


class _Queue:
    """The tasks of one `run`, given to workers by size and answered in order.

    At least `fewest` tasks may be running or waiting to be yielded, more if replies, which are
    about as large as the broadcast, are small.
    """

    def __init__(self, tasks: Iterable[Task], fewest: int, size: Callable[[Task], int]) -> None:
        self._tasks, self._fewest, self._size = iter(tasks), fewest, size
        self._ahead = fewest
        self._condition = threading.Condition()
        self._pending: list[tuple[int, Task]] = []
        self._next = self._yielded = 0
        self._answers: dict[int, Reply] = {}
        self._count: int | None = None
        self._error: BaseException | None = None
        self._stopped = False

    def take(self) -> tuple[int, Task] | None:
        """Return the position and task of the largest one that may start, or None at the end."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stopped or self._fill() or self._count is not None
            )
            if self._stopped or not self._pending:
                return None
            largest = max(self._pending, key=lambda job: (self._size(job[1]), -job[0]))
            self._pending.remove(largest)
            return largest

    def _fill(self) -> bool:
        """Fetch all tasks that may start by now; return whether there is one."""
        while self._count is None and self._next < self._yielded + self._ahead:
            task = next(self._tasks, None)
            if task is None:
                self._count = self._next
                self._condition.notify_all()
                break
            self._pending.append((self._next, task))
            self._next += 1
            affordable = min(_AHEAD_BYTES // max(1, task.down.nbytes()), _AHEAD_MOST)
            self._ahead = max(self._fewest, affordable)
        return bool(self._pending)

    def answer(self, position: int, reply: Reply) -> None:
        """Store the reply to the task at a position."""
        with self._condition:
            self._answers[position] = reply
            self._condition.notify_all()

    def stop(self, error: BaseException | None = None) -> None:
        """Give no more tasks to workers, and raise an error in the thread that reads replies."""
        with self._condition:
            self._error = self._error or error
            self._stopped = True
            self._condition.notify_all()

    def replies(self) -> Iterator[Reply]:
        """Yield the replies in the order of the tasks."""
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._error or self._yielded in {self._count, *self._answers}
                )
                if self._error is not None:
                    raise self._error
                if self._yielded not in self._answers:
                    return
                reply = self._answers.pop(self._yielded)
                self._yielded += 1
                self._condition.notify_all()
            yield reply


class Processes:
    """Runs tasks in worker processes."""

    def __init__(
        self,
        spec: Spec,
        partition: Partition,
        *,
        workers: int,
        devices: Sequence[str] = (),
        timeout: float = 0.0,
    ) -> None:
        self._spec, self._partition = spec, partition
        self._devices, self._timeout = tuple(devices) or (spec.device,), timeout
        self._gate, self._closed = _Gate(), False
        self._jobs = _Queue((), 0, self._samples)
        self._threads: list[threading.Thread] = []
        self._lifecycle, self._encoding = threading.Lock(), threading.Lock()
        self._encoded: tuple[Payload | None, bytes] = (None, b"")
        self._workers: list[Worker] = []
        try:
            for slot in range(max(1, workers)):
                self._workers.append(self._start(slot))
        except BaseException:
            self.close()
            raise

    def clients(self) -> Sequence[ClientInfo]:
        """List the clients of the partition."""
        return list_clients(self._partition)

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Run the tasks in parallel and yield the replies in order."""
        jobs = self._jobs = _Queue(tasks, 2 * len(self._workers), self._samples)
        self._threads = [
            threading.Thread(target=self._feed, args=(slot, jobs), daemon=True)
            for slot in range(len(self._workers))
        ]
        try:
            for thread in self._threads:
                thread.start()
            yield from jobs.replies()
        except BaseException:
            self._abandon()  # the remaining replies will not be read
            raise
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Kill every worker; safe to call twice."""
        self._abandon()
        for worker in self._workers:
            worker.end()

    def _abandon(self) -> None:
        """Stop and kill the workers, but keep their pipes open while a thread may use them."""
        self._jobs.stop()
        with self._lifecycle:  # no thread may start another worker from now on
            self._closed = True
            for worker in self._workers:
                worker.kill()
        for thread in self._threads:
            if thread.ident is not None:  # after an interrupt, some may not have been started
                thread.join()

    def _samples(self, task: Task) -> int:
        """Estimate the work of a task by its number of samples."""
        share = self._partition.train if task.op == "update" else self._partition.test
        return len(share[task.client])

    def _start(self, slot: int) -> Worker:
        device = self._devices[slot % len(self._devices)]
        return Worker(replace(self._spec, device=device), self._partition)

    def _feed(self, slot: int, jobs: _Queue) -> None:
        try:
            while (job := jobs.take()) is not None:
                position, task = job
                jobs.answer(position, self._run_task(slot, task))
        except BaseException as error:
            jobs.stop(error)

    def _run_task(self, slot: int, task: Task) -> Reply:
        """Run one task until it is answered, or until its workers have died too often."""
        start = time.monotonic()
        for deaths in range(_RETRIES + 1):
            try:
                with self._gate.enter(alone=deaths > 0):
                    self._workers[slot].prepare()
                    # the time to start a worker does not count
                    deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
                    reply = self._workers[slot].ask(task, self._encode(task.down), deadline)
                if reply.error is None or reply.error.kind != "lost" or deaths == _RETRIES:
                    return reply
                self._replace_worker(slot)  # memory ran out: try again alone, in a new process
            except wire.Late:
                self._replace_worker(slot)
                reason = f"no answer within executor.timeout = {self._timeout:g} s"
                failure = Failure("late", reason)
                return Reply(task.client, error=failure, seconds=time.monotonic() - start)
            except wire.Closed:
                damage, code = "", self._replace_worker(slot)
            except CodecError as error:
                damage, code = str(error), self._replace_worker(slot)
        status = "unknown" if code is None else code
        reason = f"its worker died {_RETRIES + 1} times (last exit status {status})"
        if damage:
            reason = (
                f"its worker failed {_RETRIES + 1} times (at last by a damaged reply: {damage})"
            )
        elif code == -9:
            size = len(self._partition.train[task.client])
            reason += f", as when memory runs out; the client has {size} samples"
        return Reply(task.client, error=Failure("lost", reason), seconds=time.monotonic() - start)

    def _replace_worker(self, slot: int) -> int | None:
        """Replace a worker; return the exit status of the old one, if it is known."""
        with self._lifecycle:
            if self._closed:
                raise RunFailed("the executor was closed")
            old = self._workers[slot]
            old.end()  # if it is dead already, its exit status stays
            self._workers[slot] = self._start(slot)
            return old.process.returncode

    def _encode(self, down: Payload) -> bytes:
        """Encode a broadcast, once for all workers."""
        with self._encoding:
            if self._encoded[0] is not down:
                self._encoded = (down, codec.encode(down))
            return self._encoded[1]
