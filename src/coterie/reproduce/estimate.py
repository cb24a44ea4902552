"""Estimates how long a study takes here: what was measured of each part, added up.

Rows whose steps are alike share their measurements (`timing.py`), so that equal rows have equal
estimates however busy the machine is in between.
"""

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from coterie.core import exact
from coterie.core.errors import CoterieError, DataError
from coterie.core.formatting import counted, duration
from coterie.core.task import METHOD
from coterie.data.batches import cut
from coterie.engine.cohort import count_asked
from coterie.experiment import config as configuration
from coterie.experiment.prepare import Experiment, prepare
from coterie.kit.method import FederatedEvaluator
from coterie.reproduce.plan import Study, is_finished
from coterie.reproduce.runs import list_trials
from coterie.reproduce.scores import Scores
from coterie.reproduce.timing import ALONE, Load, Timing, measure

# Keys that do not change what a batch takes: how many samples and batches there are is added up,
# and how samples are divided among clients is not measured. Seeds and rates change numbers only.
_COUNTED = {
    "data": ("root", "limit", "holdout", "imbalance"),
    "local": ("epochs", "steps", "lr", "schedule", "warmup", "weight_decay", "momentum"),
}
_SHIFTED = ("skew", "strength", "label_swap")  # of a partition: how a client sees its samples


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
            configs = runs or [study.config(cell, cell.points[0], study.first)]
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
    time = f"in all about {duration(total)} on free cores{_describe_load()}{rest}"
    yield f"{time}; finished runs are kept in {out / 'cells'}"


def _describe_load() -> str:
    """Say how much longer it takes while other programs compute, where they do."""
    cores, load = exact.cores(), os.getloadavg()[0] - 1  # this program is one of the load
    longer = (load + cores) / cores
    return f" ({longer:.1f} times that with what else runs now)" if longer > 1.5 else ""


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
    data, local = (
        {key: value for key, value in tables[name].items() if key not in counted}
        for name, counted in _COUNTED.items()
    )
    # of a weight it matters only whether its term is there at all
    method = {k: v > 0 if isinstance(v, float) else v for k, v in tables["method"].items()}
    shifted = [tables["partition"].get(key) for key in _SHIFTED]
    chosen = method, tables["objective"], tables["net"], data, local, shifted
    return json.dumps([*chosen, config.run.device])


def add_up(experiment: Experiment, timing: Timing) -> float:
    """Add up a whole run: clients' work is shared by the workers, the server's is not."""
    config, sizes = experiment.config, experiment.partition.sizes()
    workers = min(config.executor.workers or exact.cores(), len(sizes))
    workers = workers if config.executor.kind != "serial" else 1
    clients, server = _add_up_tests(experiment, timing.test)
    batches = {client: _count_batches(config, size) for client, size in sizes.items()}
    for stage in experiment.parts.stages(METHOD):
        own = timing.server[stage.name]
        if stage.cohort == ALONE:
            server += stage.rounds * own(sum(sizes.values()))
            continue
        server += stage.rounds * own.start
        asked = count_asked(len(sizes), stage, config.cohort.fraction) / len(sizes)
        task = timing.clients[stage.name]
        total = sum(task(_count_seen(config, size), batches[c]) for c, size in sizes.items())
        clients += stage.rounds * asked * total
    return clients / workers + server


def _add_up_tests(experiment: Experiment, sample: float) -> tuple[float, float]:
    """Add up all evaluations, those of clients and those of the server, by samples they encode."""
    config, shares = experiment.config, experiment.partition
    stages = experiment.parts.stages(METHOD)
    every, rounds = config.evaluate.every, sum(stage.rounds for stage in stages)
    evaluations = math.ceil(rounds / every) if every else 1
    trained, tests = sum(shares.sizes().values()), len(experiment.dataset.y_test)
    owned, encoded = sum(map(len, shares.test.values())), Counter[bool]()
    for name, evaluator in config.evaluators.items():
        on_server = evaluator.where == "server"
        count = tests + len(experiment.holdout) if on_server else owned
        if isinstance(evaluator, FederatedEvaluator):
            count += trained
        elif hasattr(evaluator, "layer"):  # it learns from representations
            count += trained * (len(shares.train) if evaluator.pools else 1)
        encoded[on_server] += count * (1 if name in config.evaluate.last else evaluations)
    own, tested = sample * encoded[False], sample * encoded[True]
    if experiment.parts.method.model(experiment.parts.start()) is None:
        # every client's own model is tested, by its worker
        return own + tested * len(shares.train), 0.0
    return own, tested


def _count_batches(config: configuration.Config, samples: int) -> int:
    """Count the batches that a client trains on in a round."""
    local = config.local
    if local.steps:
        return Load.of(samples, local.steps, local).batches
    return local.epochs * len(cut(samples, local.batch_size, local.drop_last))


def _count_seen(config: configuration.Config, samples: int) -> int:
    """Count the samples of a pass over a client's data: no more than a round of few steps sees."""
    local = config.local
    seen = local.steps * local.accumulate * local.batch_size
    return min(samples, seen) if seen else samples
