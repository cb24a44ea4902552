"""Measures what the parts of a run take here: one client plays every stage in a temporary folder.

A client with n samples takes, in a round of a stage in which it makes s optimiser steps,

    start + sample n + step s

seconds: a pass over all samples, as for prototypes or tables of reference networks, does not grow
with the steps. Three measurements give the three numbers. On the server it is start + sample n,
where n are all samples in a round on the server alone.

Where the processor computes, its time for this process is taken and not that of the clock: other
programs hardly change it. Of repeated measurements the shortest counts.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from coterie.core.bundle import ServerState
from coterie.core.errors import RunFailed
from coterie.core.task import METHOD, Attempt, ClientInfo, Executor, Reply, Round, Task
from coterie.data.batches import DataShard
from coterie.data.partition import Partition
from coterie.engine.cohort import Invited
from coterie.engine.play import Player
from coterie.engine.spec import Parts
from coterie.experiment.prepare import Experiment, make_player
from coterie.kit.stages import Stage, plan_rounds

ALONE = "none"  # the cohort of a round on the server alone
_LEAST = 64  # samples: a method may want so many of a class before it uses them
_SAMPLES, _STEPS = 3, 4  # times as many in the second measurement; steps then see all samples
_TESTED = 500  # test samples that an evaluation is timed on
_REPEATS, _ENOUGH = 5, 1.0  # repeats of a measurement, and seconds after which there are no more
Clock = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """The seconds of a task or of the server's part of a round: `start + sample n + step s`."""

    start: float
    sample: float
    step: float = 0.0

    @classmethod
    def through(
        cls, seconds: Sequence[float], samples: tuple[int, int], steps: tuple[int, int]
    ) -> "Work":
        """Solve for the three numbers, none of which is negative.

        Measured are few samples in few steps, in more steps, and more samples in more steps.
        """
        few, longer, larger = seconds
        step = max((longer - few) / (steps[1] - steps[0]), 0.0)
        more = samples[1] - samples[0]
        sample = max((larger - longer) / more, 0.0) if more else 0.0
        return cls(max(few - step * steps[0] - sample * samples[0], 0.0), sample, step)

    def __call__(self, samples: int, steps: int = 0) -> float:
        """Return the seconds for so many samples and steps."""
        return self.start + self.sample * samples + self.step * steps


@dataclass(frozen=True)
class Timing:
    """The seconds that the parts of a run take here."""

    test: float  # of a sample that is tested
    clients: dict[str, Work] = field(default_factory=dict)  # by stage
    server: dict[str, Work] = field(default_factory=dict)


@dataclass
class _Timed:
    """An executor in this process that adds up what clients take."""

    executor: Executor
    clock: Clock
    spent: float = 0.0

    def clients(self) -> Sequence[ClientInfo]:
        return self.executor.clients()

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            begin = self.clock()
            yield from list(self.executor.run([task]))
            self.spent += self.clock() - begin

    def close(self) -> None:
        self.executor.close()


def measure(experiment: Experiment, folder: Path) -> Timing:
    """Measure a task of every stage, the server's part, and a pass over some test samples."""
    clock = time.process_time if experiment.spec.device == "cpu" else time.perf_counter
    local, rows = experiment.config.local, _list_rows(experiment)
    least = max(local.batch_size, _LEAST)
    samples = min(least, len(rows)), min(_SAMPLES * least, len(rows))
    few = math.ceil(least / local.batch_size / local.accumulate)
    steps = few, _STEPS * few
    plays = [
        _time_stages(experiment, folder, rows[:many], taken, clock)
        for many, taken in ((samples[0], few), (samples[0], steps[1]), (samples[1], steps[1]))
    ]
    clients, server = (
        {
            name: Work.through([play[name][part] for play in plays], samples, steps)
            for name in plays[0]
        }
        for part in (0, 1)
    )
    return Timing(_time_test(experiment, clock), clients, server)


def _list_rows(experiment: Experiment) -> np.ndarray:
    """List training samples of all clients, two classes in turns first.

    One client plays with as many of them as are needed, however many it has itself: how the data
    are divided does not change what a step takes. Of two classes it has enough for methods that
    share nothing of a class with few samples.
    """
    train = experiment.partition.train
    rows = np.concatenate([train[client] for client in sorted(train)])
    labels = experiment.dataset.y_train[rows]
    classes, counts = np.unique(labels, return_counts=True)
    place = np.full(len(rows), len(rows))
    for label in classes[np.argsort(-counts, kind="stable")[:2]]:  # the most frequent
        place[labels == label] = np.arange(np.count_nonzero(labels == label))
    ordered: np.ndarray = rows[np.argsort(place, kind="stable")]
    return ordered


def _choose_client(experiment: Experiment) -> int:
    sizes = experiment.partition.sizes()
    return sorted(sizes, key=lambda client: (sizes[client], client))[len(sizes) // 2]


def _time_stages(
    experiment: Experiment, folder: Path, rows: np.ndarray, steps: int, clock: Clock
) -> dict[str, tuple[float, float]]:
    """Time a round of every stage with one client: what the client takes, and the server."""
    client, shifts = _choose_client(experiment), experiment.partition.shifts
    own = {client: shifts[client]} if client in shifts else {}
    spec = experiment.spec
    local = replace(spec.local, steps=steps)
    spec = replace(spec, local=local, folder=tempfile.mkdtemp(dir=folder))
    alone = Partition({client: rows}, {}, (), own)
    player = make_player(replace(experiment, spec=spec, partition=alone, parts=Parts(spec)))
    timed = _Timed(player.executor, clock)
    player = replace(player, executor=timed)
    server, seconds = player.parts.start(), dict[str, tuple[float, float]]()
    planned = plan_rounds(player.parts.stages(METHOD), 1, spec.seed)
    for stage, first in planned:
        if stage.name in seconds:
            continue
        last = [round for other, round in planned if other.name == stage.name][-1]
        warm = _play(player, stage, first, server, client)
        # Clients have a state from their first round on. The server begins where it began before:
        # its last round may leave nothing for another.
        start, round = (server, first) if stage.cohort == ALONE else (warm, last)
        times, begin = list[tuple[float, float]](), time.perf_counter()
        while not times or (len(times) < _REPEATS and time.perf_counter() - begin < _ENOUGH):
            timed.spent, started = 0.0, clock()
            after = _play(player, stage, round, start, client)
            times.append((timed.spent, clock() - started - timed.spent))
        seconds[stage.name] = (min(t for t, _ in times), min(t for _, t in times))
        server = after
    return seconds


def _play(
    player: Player, stage: Stage, round: Round, server: ServerState, client: int
) -> ServerState:
    """Play a round with one client, or with none where the server is alone."""
    cohort = Invited() if stage.cohort == ALONE else Invited((client,))
    played = player.round(METHOD, stage, round, server, cohort, Attempt())
    if played.server is None:
        raise RunFailed(played.replies.first_problem())
    return played.server


def _time_test(experiment: Experiment, clock: Clock) -> float:
    """Time the test of one sample."""
    nets, count = experiment.parts.nets(METHOD), min(_TESTED, len(experiment.dataset.y_test))
    net, device = nets.frozen("model", nets.weights(), {}), experiment.spec.device
    shard = DataShard(experiment.dataset, np.arange(0), np.arange(count), device=device)
    shortest = math.inf
    for _ in range(3):  # the first pass warms up
        start = clock()
        with experiment.parts.arithmetic():
            for batch in shard.sweep(test=True):
                net(batch)
        shortest = min(shortest, clock() - start)
    nets.release()
    return shortest / max(count, 1)
