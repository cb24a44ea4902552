"""Measures what the parts of a run take here: one client plays every stage in a temporary folder.

A client with n samples takes, in a round of a stage in which it trains on b batches,

    start + sample n + batch b

seconds: a pass over all samples, as for prototypes or tables of reference networks, does not grow
with the batches. Three measurements give the three numbers. On the server it is start + sample n,
where n are all samples in a round on the server alone.

Where the processor computes, its time for this process is taken and not that of the clock: other
programs hardly change it. The three measurements take turns, so that a slow moment of the machine
does not meet one of them alone, and of the repeats of each the shortest counts.
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
from coterie.core.settings import Local
from coterie.core.task import METHOD, Attempt, ClientInfo, Executor, Reply, Round, Task
from coterie.data.batches import DataShard, cut
from coterie.data.partition import Partition
from coterie.engine.cohort import Invited
from coterie.engine.spec import Parts
from coterie.experiment.prepare import Experiment, make_player
from coterie.kit.stages import plan_rounds

ALONE = "none"  # the cohort of a round on the server alone
_LEAST = 64  # samples: a method may want so many of a class before it uses them
_SAMPLES, _STEPS = 3, 4  # times as many in the second measurement; steps then see all samples
_TESTED = 500  # test samples that an evaluation is timed on
_REPEATS, _ENOUGH = 7, 2.0  # repeats of the measurements, and seconds after which there are no more
Clock = Callable[[], float]


@dataclass(frozen=True)
class Load:
    """What a client has to do when it is measured: its samples, and its optimiser steps."""

    samples: int
    steps: int
    batches: int  # that these steps take

    @classmethod
    def of(cls, samples: int, steps: int, local: Local) -> "Load":
        """Count the batches of some steps; the end of an epoch also ends a step."""
        epoch = len(cut(samples, local.batch_size, local.drop_last))
        whole, rest = divmod(steps, -(-epoch // local.accumulate))
        return cls(samples, steps, whole * epoch + min(rest * local.accumulate, epoch))


@dataclass(frozen=True)
class Work:
    """The seconds of a task or of the server's part of a round: `start + sample n + batch b`."""

    start: float
    sample: float
    batch: float = 0.0

    @classmethod
    def through(cls, seconds: Sequence[float], loads: Sequence["Load"]) -> "Work":
        """Solve for the three numbers, none of which is negative.

        Measured are few samples in few batches, in more batches, and more samples in more batches.
        """
        (few, longer, larger), (least, again, most) = seconds, loads
        batch = max((longer - few) / (again.batches - least.batches), 0.0)
        more = most.samples - again.samples
        rest = larger - longer - batch * (most.batches - again.batches)
        sample = max(rest / more, 0.0) if more else 0.0
        start = few - batch * least.batches - sample * least.samples
        return cls(max(start, 0.0), sample, batch)

    def __call__(self, samples: int, batches: int = 0) -> float:
        """Return the seconds for so many samples and batches."""
        return self.start + self.sample * samples + self.batch * batches


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
    step = local.batch_size * local.accumulate  # samples of an optimiser step
    least = max(step, _LEAST)
    few, more = min(least, len(rows)), min(_SAMPLES * least, len(rows))
    steps = math.ceil(least / step)
    loads = [
        Load.of(samples, taken, local)
        for samples, taken in ((few, steps), (few, _STEPS * steps), (more, _STEPS * steps))
    ]
    plays = [_Rehearsal(experiment, folder, rows[: load.samples], load, clock) for load in loads]
    clients, server = dict[str, Work](), dict[str, Work]()
    stages = [stage.name for stage, _ in plays[0].planned]
    for name in dict.fromkeys(stages):
        of_clients, of_server = _take_turns(plays, name)
        clients[name] = Work.through(of_clients, loads)
        server[name] = Work.through(of_server, loads)
    return Timing(_time_test(experiment, clock), clients, server)


def _take_turns(plays: Sequence["_Rehearsal"], stage: str) -> tuple[list[float], list[float]]:
    """Time a stage in every play by turns; return the shortest times of clients and server."""
    for play in plays:
        play.enter(stage)
    rounds, begin = list[list[tuple[float, float]]](), time.perf_counter()
    while not rounds or (len(rounds) < _REPEATS and time.perf_counter() - begin < _ENOUGH):
        rounds.append([play.time_round() for play in plays])
    each = list(zip(*rounds, strict=True))  # of a play, all its times
    return [min(t for t, _ in times) for times in each], [
        min(t for _, t in times) for times in each
    ]


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


class _Rehearsal:
    """One client that plays rounds of every stage with some samples and steps."""

    def __init__(
        self, experiment: Experiment, folder: Path, rows: np.ndarray, load: Load, clock: Clock
    ) -> None:
        self.clock, self.client = clock, _choose_client(experiment)
        shifts, spec = experiment.partition.shifts, experiment.spec
        own = {self.client: shifts[self.client]} if self.client in shifts else {}
        local = replace(spec.local, steps=load.steps)
        spec = replace(spec, local=local, folder=tempfile.mkdtemp(dir=folder))
        alone = Partition({self.client: rows}, {}, (), own)
        player = make_player(replace(experiment, spec=spec, partition=alone, parts=Parts(spec)))
        self.timed = _Timed(player.executor, clock)
        self.player = replace(player, executor=self.timed)
        self.planned = plan_rounds(player.parts.stages(METHOD), 1, spec.seed)
        self.after = self.player.parts.start()  # the server's state after what was played last

    def enter(self, name: str) -> None:
        """Begin a stage: play its first round once, so that nothing is done for the first time.

        Clients have a state from their first round on. The server begins where it began before: its
        last round may leave nothing for another.
        """
        rounds = [(stage, round) for stage, round in self.planned if stage.name == name]
        self.stage, first = rounds[0]
        before = self.after
        warm = self._play(first, before)
        alone = self.stage.cohort == ALONE
        self.start, self.round = (before, first) if alone else (warm, rounds[-1][1])

    def time_round(self) -> tuple[float, float]:
        """Play the stage's last round; return the seconds of the client and of the server."""
        self.timed.spent, started = 0.0, self.clock()
        self.after = self._play(self.round, self.start)
        return self.timed.spent, self.clock() - started - self.timed.spent

    def _play(self, round: Round, server: ServerState) -> ServerState:
        """Play a round with one client, or with none where the server is alone."""
        cohort = Invited() if self.stage.cohort == ALONE else Invited((self.client,))
        played = self.player.round(METHOD, self.stage, round, server, cohort, Attempt())
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
