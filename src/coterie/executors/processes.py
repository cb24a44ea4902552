"""An executor with worker processes on this machine, one torch thread each."""

import functools
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from coterie.core import codec
from coterie.core.bundle import Bundle, Payload
from coterie.core.errors import RunFailed
from coterie.core.exact import THREAD_VARIABLES
from coterie.core.task import ClientInfo, Reply, Task
from coterie.data.partition import Partition
from coterie.engine.cohort import count_samples, list_clients
from coterie.engine.spec import Spec
from coterie.executors import launch, wire
from coterie.executors.pool import Ending, Pool

_START_SECONDS = 300.0


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

    def end(self) -> Ending:
        """Kill the process and close its pipes, which no other thread may be using."""
        self.kill()  # if it is dead already, its exit status stays
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        code = self.process.returncode
        status = "unknown" if code is None else code
        return Ending(f"last exit status {status}", killed=code == -signal.SIGKILL)


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
        self._partition, devices = partition, tuple(devices) or (spec.device,)

        def start(slot: int) -> Worker:
            device = devices[slot % len(devices)]
            return Worker(replace(spec, device=device), partition)

        size = functools.partial(count_samples, partition)
        self._pool = Pool(workers, start, codec.encode, size, timeout)

    def clients(self) -> Sequence[ClientInfo]:
        """List the clients of the partition."""
        return list_clients(self._partition)

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Run the tasks in parallel and yield the replies in order."""
        return self._pool.run(tasks)

    def close(self) -> None:
        """Kill every worker; safe to call twice."""
        self._pool.close()
