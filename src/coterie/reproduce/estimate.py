"""What a plan would run, and how long that takes here: measured on a few steps of one client."""

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coterie.core import exact
from coterie.core.errors import CoterieError, DataError, RunFailed
from coterie.core.formatting import counted, duration
from coterie.core.task import METHOD, Round
from coterie.data.batches import DataShard, cut
from coterie.engine.cohort import count_invited
from coterie.experiment import config as configuration
from coterie.experiment.config import Config
from coterie.experiment.prepare import Experiment, make_player, prepare
from coterie.kit.stages import plan_rounds
from coterie.reproduce.estimate_stages import ALONE, Line, measure_stages, stage_seconds
from coterie.reproduce.plan import Cell, Plan, run_folder

_FEW, _MORE = 2, 6  # optimiser steps: what both take alike is not the steps'
_TESTED = 500  # test samples that an evaluation is timed on


@dataclass(frozen=True)
class Cost:
    """What the parts of a run take here, in seconds."""

    task: float  # a client's task but for its steps
    step: float
    sample: float  # of the test set
    stages: Mapping[str, Line] = field(default_factory=dict)  # instead, where the server has rounds


def describe(plan: Plan, out: Path) -> Iterator[str]:
    """A line for every cell, and the time of all; nothing is written to `out`."""
    costs: dict[str, Cost | str] = {}
    seen: set[Path] = set()
    seconds, known = 0.0, True
    for cell in plan.cells:
        kept, runs, extra = _runs(plan, cell, out, seen)
        words = [counted(cell.seeds, "seed")]
        if len(cell.points) > 1:
            words.append(f"{len(cell.points)} points of a grid")
        if kept:
            words.append(f"{kept} kept")
        if runs or extra:
            words.append(f"{len(runs) + extra} to run")
            some = runs or [plan.config(cell, cell.points[0], 0)]
            each = [estimate(config, costs) for config in some]
            told = [one for one in each if isinstance(one, float)]
            if len(told) == len(each):
                spent = sum(told[: len(runs)]) + extra * sum(told) / len(told)
                seconds += spent
                words.append(f"about {duration(spent)}")
            else:
                known = False
                words.append(next(one for one in each if isinstance(one, str)))
        elif not kept:
            words.append("read from the runs of another column")
        yield f"{cell.name}: {', '.join(words)}"
    yield from plan.left_out
    rest = "" if known else ", and what cannot be estimated here"
    yield f"in all about {duration(seconds)}{rest}; finished runs are kept in {out / 'cells'}"


def _runs(plan: Plan, cell: Cell, out: Path, seen: set[Path]) -> tuple[int, list[Config], int]:
    """Runs that are kept, those to be done, and how many more follow once a point is chosen."""
    kept, runs = 0, []
    alone = len(cell.points) == 1
    for point in cell.points:
        for number in range(cell.seeds if alone else 1):
            config = plan.config(cell, point, number)
            folder = run_folder(out, config)
            if (folder / "report.html").is_file():
                kept += 1
            elif folder not in seen:  # another column may read the same run
                seen.add(folder)
                runs.append(config)
    return kept, runs, 0 if alone else cell.seeds - 1


def estimate(config: Config, costs: dict[str, Cost | str]) -> float | str:
    """The seconds of a run, or why they are not known; `costs` keeps what was measured."""
    key = _alike(config)
    with tempfile.TemporaryDirectory() as folder, exact.exact_arithmetic():
        try:
            experiment = prepare(config, Path(folder))
            if key not in costs:
                costs[key] = measure(config, Path(folder))
        except DataError:
            return "the data are not here"
        except CoterieError as error:
            return f"cannot be estimated: {error}"
    cost = costs[key]
    return cost if isinstance(cost, str) else seconds(experiment, cost)


def _alike(config: Config) -> str:
    """What two runs share whose steps take the same time."""
    tables = config.tables
    local = {k: v for k, v in tables["local"].items() if k not in ("epochs", "steps", "lr")}
    # of a weight it matters only whether its term is there at all
    method = {k: v > 0 if isinstance(v, float) else v for k, v in tables["method"].items()}
    chosen = method, tables["objective"], tables["net"], local
    return json.dumps([*chosen, tables["data"], tables["partition"], config.run.device])


def measure(config: Config, folder: Path) -> Cost | str:
    """Time a client's task with few and with more steps, and a pass over some test samples."""
    whole = prepare(config, folder)
    if any(stage.cohort == ALONE for stage in whole.parts.stages(METHOD)):
        lines = measure_stages(whole, folder)
        return lines if isinstance(lines, str) else Cost(0.0, 0.0, _per_sample(whole), lines)
    players = {}
    for steps in (_FEW, _MORE):
        changes = {"local": {"steps": steps}, "run": {"rounds": max(config.run.rounds, 3)}}
        players[steps] = make_player(prepare(configuration.resolve(config.tables, changes), folder))
    parts, sizes = players[_FEW].parts, whole.partition.sizes()
    client = sorted(sizes, key=lambda other: sizes[other])[len(sizes) // 2]
    server, stages = parts.start(), parts.stages(METHOD)
    longest = max(stages, key=lambda stage: stage.rounds)
    planned = plan_rounds(stages, len(sizes), config.run.seed)
    rounds = [round for stage, round in planned if stage is longest]

    def time_task(steps: int, round: Round) -> float:
        (reply,), _ = players[steps].rehearse(longest, round, server, [client])
        return reply.seconds

    try:
        for steps, round in zip((_FEW, _MORE), rounds, strict=False):
            time_task(steps, round)  # warms up
        few, more = time_task(_FEW, rounds[-1]), time_task(_MORE, rounds[-1])
    except RunFailed as error:
        return f"cannot be estimated: {error}"
    step = max((more - few) / (_MORE - _FEW), few / _FEW / 10)
    return Cost(max(few - _FEW * step, 0.0), step, _per_sample(whole))


def _per_sample(experiment: Experiment) -> float:
    """Seconds to test one sample."""
    nets, count = experiment.parts.nets(METHOD), min(_TESTED, len(experiment.dataset.y_test))
    net = nets.frozen("model", nets.weights(), {})
    device = experiment.spec.device
    shard = DataShard(experiment.dataset, np.arange(0), np.arange(count), device=device)
    for _ in range(2):  # the first pass warms up
        start = time.perf_counter()
        with experiment.parts.kernels():
            for batch in shard.sweep(test=True):
                net(batch)
    nets.release()
    return (time.perf_counter() - start) / max(count, 1)


def seconds(experiment: Experiment, cost: Cost) -> float:
    """The time of a whole run: clients' work is shared by the workers, the server's is not."""
    config, shares = experiment.config, experiment.partition
    sizes = shares.sizes()
    workers = 1
    if config.executor.kind == "processes":
        workers = min(config.executor.workers or exact.cores(), len(sizes))
    training = sum(cost.task + cost.step * _steps(config, size) for size in sizes.values())
    every, stages = config.evaluate.every, experiment.parts.stages(METHOD)
    invited = count_invited(len(sizes), stages[-1], config.cohort.fraction) / len(sizes)
    total = sum(stage.rounds for stage in stages)
    evaluations = math.ceil(total / every) if every else 1
    times = {
        where: sum(
            1 if name in config.evaluate.last else evaluations
            for name, one in config.evaluators.items()
            if one.where == where
        )
        for where in ("server", "client")
    }
    tests = len(experiment.dataset.y_test) + len(experiment.held)
    tested = cost.sample * tests * times["server"]
    own = cost.sample * sum(map(len, shares.test.values()))
    own *= times["client"]
    if experiment.parts.method.model(experiment.parts.start()) is None:
        # every client's own model is tested, where it lies
        own, tested = own + tested * len(sizes), 0.0
    trained = config.run.rounds * invited * training / workers
    if cost.stages:
        trained = stage_seconds(experiment, cost.stages, workers)
    return trained + own / workers + tested


def _steps(config: Config, samples: int) -> int:
    """Optimiser steps of a client in a round."""
    local = config.local
    batches = len(cut(samples, local.batch_size, local.drop_last))
    return local.steps or local.epochs * -(-batches // local.accumulate)
