"""An executor over a Ray cluster: one actor per core, or per share of a GPU, with a site in each.

The broadcast is put into Ray's object store once, and fetched by each node once. A client's state
goes out with its task and comes back with its reply; this process alone writes the run directory.
Ray neither restarts actors nor repeats tasks: the pool does both, as for processes.
"""

import functools
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch

from coterie.core import codec, exact
from coterie.core.bundle import Bundle, Payload
from coterie.core.errors import CheckpointError, ConfigError, RunFailed
from coterie.core.task import ClientInfo, Failure, Reply, Task
from coterie.data.copies import read_files
from coterie.data.partition import Partition
from coterie.engine.client_files import RunFolder
from coterie.engine.cohort import count_samples, list_clients
from coterie.engine.spec import Parts, Spec, describe_environment
from coterie.executors import wire
from coterie.executors.cluster.actor import SiteActor
from coterie.executors.cluster.connect import connect
from coterie.executors.launch import import_path
from coterie.executors.pool import Ending, NoRoom, Pool

GPU, CPU = "GPU", "CPU"
_START_SECONDS = 300.0
_NOTICE_SECONDS = 5.0  # until the cluster has noticed that a node is gone
_TICK = 0.5  # seconds between looks at what may end a wait
_VERSIONS = ("coterie", "torch")  # other differences of nodes are allowed, and noted


@dataclass(frozen=True)
class Broadcast:
    """A payload in the object store."""

    number: int
    ref: Any


class Supply:
    """What every actor is sent once: specification, partition, and data where they are missing."""

    def __init__(self, spec: Spec, partition: Partition, fingerprint: str) -> None:
        self.spec, self._fingerprint, self._names = spec, fingerprint, list(partition.names)
        packed = {name: torch.from_numpy(array) for name, array in partition.pack().items()}
        self.partition = ray.put(codec.encode(Bundle({"partition": packed})))
        self._lock, self._data = threading.Lock(), None

    def head(self, device: str) -> bytes:
        """Describe the site of an actor on a device."""
        spec = replace(self.spec, device=device).to_json()
        values = {"spec": spec, "fingerprint": self._fingerprint, "names": self._names}
        return json.dumps(values).encode()

    def data(self) -> Any:
        """Put the data set into the object store, for nodes that cannot read it; once."""
        with self._lock:
            if self._data is None:
                self._data = ray.put(read_files(Path(self.spec.data)))
            return self._data


class Crew:
    """Counts the actors at work, and the places that the nodes alive have for them."""

    def __init__(self, active: int, needs: dict[str, float]) -> None:
        self._active, self._needs, self._lock = active, needs, threading.Lock()

    def leave_if_crowded(self) -> bool:
        """Whether there are fewer places than actors; then one leaves, unless it is the last."""
        places = count_places(ray.cluster_resources(), self._needs)
        with self._lock:
            crowded = places < self._active > 1
            self._active -= crowded
            return crowded

    def join(self) -> None:
        """Count an actor that has found a place after all."""
        with self._lock:
            self._active += 1


class Actor:
    """One actor and what is known of it, for the pool."""

    def __init__(
        self,
        supply: Supply,
        files: RunFolder,
        crew: Crew,
        device: str,
        options: dict[str, Any],
        greet: Callable[[dict[str, Any]], None],
    ) -> None:
        self._supply, self._files, self._crew, self._greet = supply, files, crew, greet
        self._head, self._since = supply.head(device), time.monotonic()
        self._handle = ray.remote(**options)(SiteActor).remote()
        self._opening = self._handle.open.remote(self._head, [supply.partition], [])
        self._ready = self._waits = self._killed = False
        self._node, self._reason = "", "unknown"

    def prepare(self) -> None:
        """Wait until the actor has its data and networks."""
        while not self._ready:
            if not self._opens_within(0.0 if self._waits else _TICK):
                if self._waits:  # it has had its time: the others do not wait for it again
                    raise NoRoom("the cluster has no room for a worker")
                self._check_room()
                continue
            answer = json.loads(self._fetch(self._opening))
            if answer["kind"] == "missing":
                data = [self._supply.data()]
                self._opening = self._handle.open.remote(self._head, [self._supply.partition], data)
            elif answer["kind"] == "ready":
                self._node, self._ready = answer["node"], True
                self._greet(answer["environment"])
            else:
                raise RunFailed(f"a worker could not start: {answer['reason']}")
        if self._waits:
            self._waits = False
            self._crew.join()

    def ask(self, task: Task, broadcast: Broadcast, deadline: float | None) -> Reply:
        """Send the task with the client's state; write what comes back into the run directory."""
        try:
            state = self._files.load(task)
            answer = self._handle.run.remote(
                json.dumps(wire.task_head(task), default=asdict).encode(),
                codec.encode(task.own) if task.own is not None else b"",
                codec.encode(state) if state is not None else b"",
                [broadcast.ref],
                broadcast.number,
            )
            head, up, kept = self._wait(answer, deadline)
            if kept:
                self._files.save(task, codec.decode(kept))
            folder = self._files.spool(task)
            return wire.read_reply(
                wire.read_head(head),
                up,
                task,
                lambda data, limits, expected: codec.unpack(data, folder, limits, expected),
            )
        except CheckpointError as error:
            return Reply(task.client, error=Failure("disk", str(error)))

    def kill(self) -> None:
        """Have the cluster end the actor at once."""
        self._killed = True
        if ray.is_initialized():
            ray.kill(self._handle)

    def end(self) -> Ending:
        """Kill the actor; tell how it ended, and whether its node is still there."""
        self.kill()
        if not self._node_is_gone():
            return Ending(self._reason)
        # its client did not use up the memory: the others need not wait for it
        return Ending(f"the last one with its node {self._node[:8]}", alone=False)

    def _node_is_gone(self) -> bool:
        if not self._node or not ray.is_initialized():
            return False
        return not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == self._node)

    def _check_room(self) -> None:
        """Raise `NoRoom` if no place for this actor can be expected soon."""
        waited = time.monotonic() - self._since
        if waited > _START_SECONDS or (waited > _NOTICE_SECONDS and self._crew.leave_if_crowded()):
            self._waits = True
            raise NoRoom(f"the cluster had no room for a worker within {waited:.0f} s")

    def _opens_within(self, seconds: float) -> bool:
        if self._killed:
            raise wire.Closed("killed")
        return bool(ray.wait([self._opening], timeout=seconds, fetch_local=False)[0])

    def _wait(self, answer: Any, deadline: float | None) -> Any:
        """Wait for a result, at most until the deadline, and not for an actor that was killed."""
        while not ray.wait([answer], timeout=_TICK)[0]:
            if self._killed:
                raise wire.Closed("killed")
            if deadline is not None and time.monotonic() > deadline:
                raise wire.Late
        return self._fetch(answer)

    def _fetch(self, answer: Any) -> Any:
        """Get a result that is there, or the error of an actor that is not."""
        try:
            return ray.get(answer)
        except ray.exceptions.RayTaskError as error:  # the actor lives, its code raised
            raise RunFailed(f"a worker failed: {_last_line(error)}") from error
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayActorError) and error.actor_init_failed:
                raise RunFailed(f"a worker could not start: {_last_line(error)}") from error
            self._reason = _describe(error)
            raise wire.Closed(self._reason) from error


class Cluster:
    """Runs tasks on a Ray cluster."""

    def __init__(
        self,
        parts: Parts,
        partition: Partition,
        fingerprint: str,
        *,
        address: str = "",
        insecure: bool = False,
        workers: int = 0,
        devices: Sequence[str] = (),
        timeout: float = 0.0,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        spec, self._partition = parts.spec, partition
        devices = tuple(devices) or (spec.device.partition(":")[0],)
        on_gpus = any(device != "cpu" for device in devices)
        cpus = workers or exact.cores()
        self._connection = connect(address, insecure, cpus, None if on_gpus else 0)
        try:
            resources = ray.cluster_resources()
            count = min(choose_workers(workers, devices, resources), len(partition.clients))
            needs = choose_needs(count, devices, resources)
            self._environment, self._noted = describe_environment(spec), set[str]()
            self._note, self._numbers = note, itertools.count()
            supply = Supply(spec, partition, fingerprint)
            files = RunFolder(Path(spec.folder), partition, parts.programs)
            crew = Crew(count, needs[0])

            def start(slot: int) -> Actor:
                turn = slot % len(devices)
                options = actor_options(needs[turn])
                return Actor(supply, files, crew, devices[turn], options, self._compare)

            size = functools.partial(count_samples, partition)
            self._pool = Pool(count, start, self._put, size, timeout)
        except BaseException:
            self._connection.close()
            raise

    def clients(self) -> Sequence[ClientInfo]:
        """List the clients of the partition."""
        return list_clients(self._partition)

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Run the tasks in parallel and yield the replies in order."""
        return self._pool.run(tasks)

    def close(self) -> None:
        """End every actor, and the cluster if it is our own; safe to call twice."""
        self._pool.close()
        self._connection.close()

    def _put(self, down: Payload) -> Broadcast:
        return Broadcast(next(self._numbers), ray.put(codec.pack(down)))

    def _compare(self, theirs: dict[str, str]) -> None:
        """Refuse nodes with other versions; note once what else makes their bits differ."""
        for name, own in self._environment.items():
            other = theirs.get(name, own)
            if other == own or name == "device":
                continue
            if name in _VERSIONS:
                raise RunFailed(
                    f"a node has {name} {other}, this process {name} {own}: install one"
                )
            text = f"a node has {name} {other}, this process {name} {own}: the bits may differ"
            if text not in self._noted:
                self._noted.add(text)
                self._note(text)


def choose_workers(asked: int, devices: Sequence[str], resources: dict[str, float]) -> int:
    """Choose the number of actors: one per GPU where one is used, else one per core."""
    kind = GPU if any(device != "cpu" for device in devices) else CPU
    places = int(resources.get(kind, 0))
    if not places:
        raise ConfigError(
            f"executor.devices = {list(devices)}, and no node of the cluster offers a {kind}"
        )
    if kind == CPU and asked > places:
        raise ConfigError(
            f"executor.workers = {asked}, and the nodes of the cluster offer {places} CPUs"
        )
    return asked or places


def choose_needs(
    workers: int, devices: Sequence[str], resources: dict[str, float]
) -> list[dict[str, float]]:
    """Choose what an actor of each device takes: a core, and an equal share of a GPU.

    A share is 1 / n, since an actor cannot use two halves of different GPUs.
    """
    turns = [devices[slot % len(devices)] for slot in range(workers)]
    on_gpus = sum(device != "cpu" for device in turns)
    share = 1.0 / math.ceil(on_gpus / max(1, int(resources.get(GPU, 0)))) if on_gpus else 0.0
    return [{CPU: 1.0} | ({GPU: share} if device != "cpu" else {}) for device in devices]


def count_places(resources: dict[str, float], needs: dict[str, float]) -> int:
    """Count the actors for which nodes with these resources have room."""
    slack = 1e-6  # shares of a GPU do not add up exactly
    return int(min(resources.get(kind, 0.0) / need + slack for kind, need in needs.items()))


def actor_options(needs: dict[str, float]) -> dict[str, Any]:
    """Make the options of an actor: its resources, no repeats by Ray, spread over the nodes."""
    variables = dict.fromkeys(exact.THREAD_VARIABLES, "1")
    own = [path for path in import_path() if not path.startswith((sys.prefix, sys.base_prefix))]
    if own:
        variables["PYTHONPATH"] = os.pathsep.join(own)
    return {
        "num_cpus": needs[CPU],
        "num_gpus": needs.get(GPU, 0.0),
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": variables},
    }


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _describe(error: BaseException) -> str:
    """Say in a line how an actor was lost: Ray's text has one for every field."""
    lines = [line for line in str(error).splitlines() if line.strip() and line[:1] != "\t"]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no reason given'}"
