"""A pool of workers: the part of an executor that does not depend on where the workers are.

One thread per worker sends it tasks. Replies are yielded in the order of the tasks. The largest
of the tasks that may start goes first, so that all workers finish a round at about the same time.
Tasks start only so far ahead of the yielded replies that these fit into `_AHEAD_BYTES`, so that
memory does not grow with the cohort. If a worker dies, it is replaced and its task is repeated,
while no other task runs if memory may have run out. After two more deaths the client is lost. A
worker that sends a damaged message counts as dead: what follows of it cannot be trusted.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from coterie.core.bundle import Payload
from coterie.core.errors import CodecError, RunFailed
from coterie.core.task import Failure, Reply, Task
from coterie.executors import wire

RETRIES = 2
_AHEAD_BYTES = 64 * 2**20
_AHEAD_MOST = 32  # tasks

Encoded = TypeVar("Encoded")  # a broadcast in the form in which workers are sent it
EncodedIn = TypeVar("EncodedIn", contravariant=True)


class NoRoom(Exception):
    """There is no place for a worker at present; the other workers do its tasks."""


class Ending(NamedTuple):
    """How a worker ended: in words, whether it was killed, and what follows for its task."""

    reason: str
    killed: bool = False  # as the kernel does when memory runs out
    alone: bool = True  # whether the task is repeated while no other one runs


class PoolWorker(Protocol[EncodedIn]):
    """One worker; `wire.Closed` says that it died, `wire.Late` that a deadline passed."""

    def prepare(self) -> None:
        """Wait until it can take tasks; `NoRoom` or `RunFailed` if it cannot."""

    def ask(self, task: Task, broadcast: EncodedIn, deadline: float | None) -> Reply:
        """Have it do a task, and wait for the reply until the deadline (`time.monotonic`)."""

    def kill(self) -> None:
        """End it at once; another thread may be waiting for its reply."""

    def end(self) -> Ending:
        """Kill it and release what it used, when no other thread is waiting for it."""


class Gate:
    """A lock that admits many tasks at once, or a single one alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = self._waiting_alone = 0

    @contextmanager
    def enter(self, alone: bool) -> Iterator[None]:
        """Hold the lock inside a `with` block."""
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


class TaskQueue:
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
            self._condition.wait_for(lambda: self._stopped or self._fill() or self._is_over())
            if self._stopped or not self._pending:
                return None
            largest = max(self._pending, key=lambda job: (self._size(job[1]), -job[0]))
            self._pending.remove(largest)
            return largest

    def give_back(self, position: int, task: Task) -> None:
        """Return a task that was taken, for another worker to take."""
        with self._condition:
            self._pending.append((position, task))
            self._condition.notify_all()

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

    def _is_over(self) -> bool:
        """Whether every task is answered: until then one that was taken may be given back."""
        return self._count is not None and self._yielded + len(self._answers) == self._count

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


class Pool(Generic[Encoded]):
    """Workers that share the tasks of a run.

    `start` starts the worker of a slot, `encode` makes of a broadcast what workers are sent, and
    `size` estimates the work of a task.
    """

    def __init__(
        self,
        workers: int,
        start: Callable[[int], PoolWorker[Encoded]],
        encode: Callable[[Payload], Encoded],
        size: Callable[[Task], int],
        timeout: float = 0.0,
    ) -> None:
        self._start, self._encode, self._size, self._timeout = start, encode, size, timeout
        self._gate, self._closed = Gate(), False
        self._jobs = TaskQueue((), 0, size)
        self._threads: list[threading.Thread] = []
        self._lifecycle, self._encoding = threading.Lock(), threading.Lock()
        self._encoded: tuple[Payload, Encoded] | None = None
        self._resting: set[int] = set()  # slots without room for a worker in this `run`
        self.workers: list[PoolWorker[Encoded]] = []
        try:
            for slot in range(max(1, workers)):
                self.workers.append(start(slot))
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Run the tasks in parallel and yield the replies in order."""
        jobs = self._jobs = TaskQueue(tasks, 2 * len(self.workers), self._size)
        self._resting.clear()
        self._threads = [
            threading.Thread(target=self._feed, args=(slot, jobs), daemon=True)
            for slot in range(len(self.workers))
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
        for worker in self.workers:
            worker.end()

    def _abandon(self) -> None:
        """Stop and kill the workers, but keep what a thread may still use."""
        self._jobs.stop()
        with self._lifecycle:  # no thread may start another worker from now on
            self._closed = True
            for worker in self.workers:
                worker.kill()
        for thread in self._threads:
            if thread.ident is not None:  # after an interrupt, some may not have been started
                thread.join()

    def _feed(self, slot: int, jobs: TaskQueue) -> None:
        try:
            while (job := jobs.take()) is not None:
                position, task = job
                try:
                    reply = self._run_task(slot, task)
                except NoRoom as error:
                    self._rest(slot, error)
                    jobs.give_back(position, task)
                    return
                jobs.answer(position, reply)
        except BaseException as error:
            jobs.stop(error)

    def _rest(self, slot: int, reason: NoRoom) -> None:
        """Leave the tasks to the workers of other slots; if there are none, the run fails."""
        with self._lifecycle:
            self._resting.add(slot)
            if len(self._resting) == len(self.workers):
                raise RunFailed(str(reason))

    def _run_task(self, slot: int, task: Task) -> Reply:
        """Run one task until it is answered, or until its workers have died too often."""
        start = time.monotonic()
        ending = Ending("", alone=False)
        for deaths in range(RETRIES + 1):
            try:
                with self._gate.enter(ending.alone):
                    self.workers[slot].prepare()
                    # the time to start a worker does not count
                    deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
                    reply = self.workers[slot].ask(task, self._broadcast(task), deadline)
                if reply.error is None or reply.error.kind != "lost" or deaths == RETRIES:
                    return reply
                self._replace_worker(slot)  # memory ran out: try again alone, in a new process
                ending = Ending("")
            except wire.Late:
                self._replace_worker(slot)
                reason = f"no answer within executor.timeout = {self._timeout:g} s"
                failure = Failure("late", reason)
                return Reply(task.client, error=failure, seconds=time.monotonic() - start)
            except wire.Closed:
                damage, ending = "", self._replace_worker(slot)
            except CodecError as error:
                damage, ending = str(error), self._replace_worker(slot)
        reason = f"its worker died {RETRIES + 1} times ({ending.reason})"
        if damage:
            reason = f"its worker failed {RETRIES + 1} times (at last by a damaged reply: {damage})"
        elif ending.killed:
            size = self._size(task)
            reason += f", as when memory runs out; the client has {size} samples"
        return Reply(task.client, error=Failure("lost", reason), seconds=time.monotonic() - start)

    def _replace_worker(self, slot: int) -> Ending:
        """Replace a worker; return how the old one ended."""
        with self._lifecycle:
            if self._closed:
                raise RunFailed("the executor was closed")
            ending = self.workers[slot].end()
            self.workers[slot] = self._start(slot)
            return ending

    def _broadcast(self, task: Task) -> Encoded:
        """Encode the broadcast of a task, once for all workers."""
        with self._encoding:
            if self._encoded is None or self._encoded[0] is not task.down:
                self._encoded = (task.down, self._encode(task.down))
            return self._encoded[1]
