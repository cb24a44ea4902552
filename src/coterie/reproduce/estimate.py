"""Estimates how long a study takes here, measured on a few steps of one client.

A method with rounds on the server alone is measured stage by stage: one client with few samples,
and then with more, plays every stage once. A round takes a + b n seconds: n are the samples
of a client, on the server those of all clients together.
"""

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from coterie.core import exact
from coterie.core.errors import CoterieError, DataError, RunFailed
from coterie.core.formatting import counted, duration
from coterie.core.task import METHOD, Attempt, Round
from coterie.data.batches import DataShard, cut
from coterie.data.partition import Partition
from coterie.engine.cohort import Invited, count_asked, count_invited
from coterie.engine.spec import Parts
from coterie.experiment import config as configuration
from coterie.experiment.prepare import Experiment, make_player, prepare
from coterie.kit.stages import plan_rounds
from coterie.reproduce.plan import Study, is_finished
from coterie.reproduce.runs import list_trials
from coterie.reproduce.scores import Scores

_FEW_SAMPLES, _MORE_SAMPLES = 48, 144  # of a client that plays every stage
ALONE = "none"  # the cohort of a round on the server alone
_FEW, _MORE = 2, 6  # optimiser steps: what both take alike is not the steps'
_TESTED = 500  # test samples that an evaluation is timed on


@dataclass(frozen=True)
class Line:
    """The seconds of a round or task, `start + sample * n` for n samples or optimiser steps."""

    start: float
    sample: float

    @classmethod
    def through(cls, few: tuple[int, float], more: tuple[int, float]) -> "Line":
        """Make the line through two measurements; it neither falls nor begins below zero."""
        between = more[0] - few[0]
        slope = max((more[1] - few[1]) / between, 0.0) if between else more[1] / more[0]
        return cls(max(more[1] - slope * more[0], 0.0), slope)

    def __call__(self, samples: int) -> float:
        """Return the seconds for so many samples or steps."""
        return self.start + self.sample * samples


@dataclass(frozen=True)
class Timing:
    """The seconds that the parts of a run take here."""

    task: Line  # of a client, by its steps
    sample: float  # of the test set
    stages: Mapping[str, Line] = field(default_factory=dict)  # instead, where the server has rounds


def describe(study: Study, out: Path) -> Iterator[str]:
    """Say what every cell would run and how long that takes; nothing is written to `out`."""
    timings, seen = dict[str, Timing](), set[Path]()
    trials, total, rest = list(list_trials(Scores(study), out)), 0.0, ""
    for cell in study.cells:
        own = [t for t in trials if (t.row, t.column) == (cell.row.name, cell.column.name)]
        missing = {t.folder: t.config for t in own if not is_finished(t.folder)}
        kept = len(own) - len(missing)
        # Another column may read the same run.
        runs = [config for folder, config in missing.items() if folder not in seen]
        seen |= missing.keys()
        later = cell.seeds - 1 if len(cell.points) > 1 else 0  # with the point that is chosen
        grid = f"{len(cell.points)} points of a grid" if len(cell.points) > 1 else ""
        facts = [counted(cell.seeds, "seed"), grid, f"{kept} kept" if kept else ""]
        if runs or later:
            facts.append(f"{len(runs) + later} to run")
            configs = runs or [study.config(cell, cell.points[0], 0)]
            try:
                times = [estimate(config, timings) for config in configs]
                spent = sum(times[: len(runs)]) + later * sum(times) / len(times)
                total += spent
                facts.append(f"about {duration(spent)}")
            except CoterieError as error:
                away = isinstance(error, DataError)
                facts.append("the data are not here" if away else f"cannot be estimated: {error}")
                rest = ", and what cannot be estimated here"
        elif not kept:
            facts.append("read from the runs of another column")
        yield f"{cell.name}: {', '.join(filter(None, facts))}"
    yield from study.left_out
    yield f"in all about {duration(total)}{rest}; finished runs are kept in {out / 'cells'}"


def estimate(config: configuration.Config, timings: dict[str, Timing]) -> float:
    """Estimate the seconds of a run; `timings` keeps what was measured."""
    key = _make_key(config)
    with tempfile.TemporaryDirectory() as folder, exact.exact_arithmetic():
        experiment = prepare(config, Path(folder))
        if key not in timings:
            timings[key] = measure(experiment, Path(folder))
    return add_up(experiment, timings[key])


def _make_key(config: configuration.Config) -> str:
    """Make a key that two runs share if their steps take the same time."""
    tables = config.tables
    local = {k: v for k, v in tables["local"].items() if k not in ("epochs", "steps", "lr")}
    # of a weight it matters only whether its term is there at all
    method = {k: v > 0 if isinstance(v, float) else v for k, v in tables["method"].items()}
    chosen = method, tables["objective"], tables["net"], local
    return json.dumps([*chosen, tables["data"], tables["partition"], config.run.device])


def measure(experiment: Experiment, folder: Path) -> Timing:
    """Time a client's task with few and with more steps, and a pass over some test samples."""
    config, sizes = experiment.config, experiment.partition.sizes()
    client = sorted(sizes, key=lambda other: sizes[other])[len(sizes) // 2]
    if any(stage.cohort == ALONE for stage in experiment.parts.stages(METHOD)):
        lines = measure_stages(experiment, client)
        return Timing(Line(0.0, 0.0), _per_sample(experiment), lines)
    players = {}
    for steps in (_FEW, _MORE):
        changes = {"local": {"steps": steps}, "run": {"rounds": max(config.run.rounds, 3)}}
        players[steps] = make_player(prepare(configuration.resolve(config.tables, changes), folder))
    server, stages = players[_FEW].parts.start(), players[_FEW].parts.stages(METHOD)
    longest = max(stages, key=lambda stage: stage.rounds)
    planned = plan_rounds(stages, len(sizes), config.run.seed)
    rounds = [round for stage, round in planned if stage is longest]

    def time_task(steps: int, round: Round) -> float:
        (reply,), _ = players[steps].rehearse(longest, round, server, [client])
        return reply.seconds

    for steps, round in zip((_FEW, _MORE), rounds, strict=False):
        time_task(steps, round)  # warms up
    few, more = time_task(_FEW, rounds[-1]), time_task(_MORE, rounds[-1])
    step = max((more - few) / (_MORE - _FEW), few / _FEW / 10)
    return Timing(Line(max(few - _FEW * step, 0.0), step), _per_sample(experiment))


def _per_sample(experiment: Experiment) -> float:
    """Measure the seconds to test one sample."""
    nets, count = experiment.parts.nets(METHOD), min(_TESTED, len(experiment.dataset.y_test))
    net, device = nets.frozen("model", nets.weights(), {}), experiment.spec.device
    shard = DataShard(experiment.dataset, np.arange(0), np.arange(count), device=device)
    for _ in range(2):  # the first pass warms up
        start = time.perf_counter()
        with experiment.parts.kernels():
            for batch in shard.sweep(test=True):
                net(batch)
    nets.release()
    return (time.perf_counter() - start) / max(count, 1)


def add_up(experiment: Experiment, timing: Timing) -> float:
    """Add up a whole run: clients' work is shared by the workers, the server's is not."""
    config, shares = experiment.config, experiment.partition
    sizes, stages = shares.sizes(), experiment.parts.stages(METHOD)
    workers = min(config.executor.workers or exact.cores(), len(sizes))
    workers = workers if config.executor.kind == "processes" else 1
    every, total = config.evaluate.every, sum(stage.rounds for stage in stages)
    evaluations = math.ceil(total / every) if every else 1
    times = Counter[str]()
    for name, evaluator in config.evaluators.items():
        times[evaluator.where] += 1 if name in config.evaluate.last else evaluations
    tests = len(experiment.dataset.y_test) + len(experiment.holdout)
    tested = timing.sample * tests * times["server"]
    own = timing.sample * sum(map(len, shares.test.values())) * times["client"]
    if experiment.parts.method.model(experiment.parts.start()) is None:
        # every client's own model is tested, by its worker
        own, tested = own + tested * len(sizes), 0.0
    if timing.stages:
        return add_up_stages(experiment, timing.stages, workers) + own / workers + tested
    training = sum(timing.task(_count_steps(config, size)) for size in sizes.values())
    invited = count_invited(len(sizes), stages[-1], config.cohort.fraction) / len(sizes)
    return (config.run.rounds * invited * training + own) / workers + tested


def _count_steps(config: configuration.Config, samples: int) -> int:
    """Count the optimiser steps of a client in a round."""
    local = config.local
    batches = len(cut(samples, local.batch_size, local.drop_last))
    return local.steps or local.epochs * -(-batches // local.accumulate)


def measure_stages(experiment: Experiment, client: int) -> dict[str, Line]:
    """Measure a round of every stage on one client."""
    size = experiment.partition.sizes()[client]
    few, more = min(_FEW_SAMPLES, size), min(_MORE_SAMPLES, size)
    _time_stages(experiment, client, few)  # warms up
    less, longer = (_time_stages(experiment, client, samples) for samples in (few, more))
    return {name: Line.through((few, less[name]), (more, longer[name])) for name in longer}


def _time_stages(experiment: Experiment, client: int, samples: int) -> dict[str, float]:
    """Time the first round of every stage, with one client of so many samples."""
    shares = experiment.partition
    shifts = {client: shares.shifts[client]} if client in shares.shifts else {}
    alone = Partition({client: shares.train[client][:samples]}, {}, (), shifts)
    spec = replace(experiment.spec, folder=tempfile.mkdtemp(dir=experiment.spec.folder))
    player = make_player(replace(experiment, spec=spec, partition=alone, parts=Parts(spec)))
    server, seconds = player.parts.start(), dict[str, float]()
    for stage, round in plan_rounds(player.parts.stages(METHOD), 1, spec.seed):
        if stage.name in seconds:
            continue
        cohort = Invited() if stage.cohort == ALONE else Invited((client,))
        begin = time.perf_counter()
        played = player.round(METHOD, stage, round, server, cohort, Attempt())
        spent = time.perf_counter() - begin
        if played.server is None:
            raise RunFailed(played.replies.first_problem())
        server = played.server
        seconds[stage.name] = played.replies.seconds.get(client, spent)
    return seconds


def add_up_stages(experiment: Experiment, lines: Mapping[str, Line], workers: int) -> float:
    """Add up all rounds of all stages, from the line of each stage."""
    fraction, sizes = experiment.config.cohort.fraction, experiment.partition.sizes()
    total = 0.0
    for stage in experiment.parts.stages(METHOD):
        line = lines[stage.name]
        if stage.cohort == ALONE:
            total += stage.rounds * line(sum(sizes.values()))
            continue
        asked = count_asked(len(sizes), stage, fraction) / len(sizes)
        total += stage.rounds * asked * sum(map(line, sizes.values())) / workers
    return total
