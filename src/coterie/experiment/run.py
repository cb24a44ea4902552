"""Runs a configuration from its start, or resumes it."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core import exact
from coterie.core.errors import CheckpointError, ConfigError, CoterieError, Interrupted, RunFailed
from coterie.core.task import Executor
from coterie.engine import rundir
from coterie.engine.loop import Loop, Standing
from coterie.engine.play import Player
from coterie.engine.record import Recorder, Recorders
from coterie.executors.sink_process import ending, make_sinks
from coterie.experiment.baseline import keep_baseline
from coterie.experiment.config import Config, load
from coterie.experiment.given import Divided
from coterie.experiment.outputs import find_lost_outputs, write_outputs
from coterie.experiment.prepare import (
    Experiment,
    make_executor,
    make_plan,
    prepare,
)
from coterie.experiment.result import CONFIG, Caller, Result, say_how_to_resume
from coterie.experiment.resume import find_standing, is_cleaned, repair, write_start
from coterie.kit.method import Method
from coterie.report.page import marks_end, remove_unfinished, write_report
from coterie.report.progress import announce, announce_data, show_progress
from coterie.types import PathLike

_OF_NETWORK = ("method", "objective", "net", "sensor")  # parts that loading a network may need


# starts what runs the tasks of an experiment, which may have stood somewhere before
StartExecutor = Callable[[Experiment, Standing | None], Executor]


class _Words(NamedTuple):
    """How a caller writes two arguments."""

    resume: str
    out: str


_WORDS: dict[Caller, _Words] = {
    "command": _Words("--resume", "--out"),
    "deploy": _Words("--resume", "--out"),
    "run": _Words("resume=True", "out="),
    "fit": _Words("resume=True", "out="),
}


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    out: PathLike | None = None,
    resume: bool = False,
    allow_inexact: bool = False,
    progress: bool | None = None,
    recorders: Sequence[Recorder] = (),
    **tables: Any,
) -> Result:
    """Run a configuration: a path, a shipped name, or tables as a dictionary.

    `tables` override it, as tables (`local={"lr": 0.1}`) or dotted keys (`**{"local.lr": 0.1}`).
    `progress` shows the rounds; None: in a terminal and in a notebook.
    """
    folder = Path(out) if out is not None else None
    saved = folder / CONFIG if resume and folder is not None else None
    resolved = load(config, tables, saved)
    with show_progress(progress, describe_start(resolved)) as shown:
        listeners = [*shown, *recorders]
        return execute(resolved, folder, resume, allow_inexact, listeners, caller="run")


def execute(
    config: Config,
    folder: Path | None = None,
    resume: bool = False,
    allow_inexact: bool = False,
    recorders: Sequence[Recorder] = (),
    given: Divided | None = None,
    caller: Caller = "command",
) -> Result:
    """Prepare, lock, start or resume, run to the end, write the outputs."""
    if resume and folder is None:
        word = _WORDS[caller]
        raise ConfigError(f"{word.resume} needs {word.out}, the directory of the run to resume")
    sites = f"{len(given[1].clients)}-sites" if given is not None else ""
    folder = folder or default_folder(config, sites)
    with exact.exact_arithmetic():
        announce(recorders, "loading data")
        experiment = prepare(config, folder, given)
        announce_data(recorders, experiment.dataset.describe())
        with open_folder(folder, resume, caller):
            drive(experiment, folder, allow_inexact, recorders)
    return Result(folder, {k: v for k, v in config.objects.items() if k in _OF_NETWORK})


@contextmanager
def open_folder(folder: Path, resume: bool, caller: Caller) -> Iterator[None]:
    """Lock the directory of a run; refuse one with other files, or with a run to be resumed."""
    word = _WORDS[caller]
    # in this order: another process may begin a run here meanwhile, with the files of its start
    if folder.is_dir() and rundir.has_foreign_files(folder) and not rundir.is_used(folder):
        raise ConfigError(f"{folder} is not empty and holds no run; choose another {word.out}")
    with rundir.lock_folder(folder):
        if rundir.is_used(folder) and not resume:
            raise ConfigError(
                f"{folder} holds a run already; add {word.resume} to resume it, or choose "
                f"another {word.out}"
            )
        rundir.refuse_obstacles(folder)
        try:
            yield
        except KeyboardInterrupt:
            again = say_how_to_resume(folder, caller)
            raise Interrupted(f"interrupted; resume with: {again}") from None


def describe_start(config: Config, data: str = "") -> list[str]:
    """Describe a run in two lines: what is trained, and what leaves a client."""
    method, seed = config.tables["method"]["name"], config.run.seed
    title = f"{method} on {data or config.data.name}, seed {seed}"
    return [title, f"leaves each client: {config.method.leaves}"]


def default_folder(config: Config, data: str = "") -> Path:
    """Choose `runs/<method>-<objective, unless supervised>-<data>-<time>`, always a new one."""
    tables = config.tables
    objective = tables["objective"]["name"]
    parts = [tables["method"]["name"], "" if objective == "supervised" else objective]
    parts.append(data or config.data.name)
    parts.append(time.strftime("%Y%m%d-%H%M%S"))
    stem = "-".join(_shorten_name(part) for part in parts if part)
    folder, number = Path("runs") / stem, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{stem}-{number}"
    return folder


def _shorten_name(name: str) -> str:
    """Write the name of a part for a folder; of a user's own part, its class in lower case."""
    own = name.rpartition(":")[2].lower() if ":" in name else name
    return re.sub(r"[^A-Za-z0-9.]+", "-", own)


def drive(
    experiment: Experiment,
    folder: Path,
    allow_inexact: bool,
    listeners: Sequence[Recorder],
    start_executor: StartExecutor | None = None,  # as the configuration says, if not given
) -> None:
    """Start or resume a run in a locked folder, and write its outputs."""
    plan = make_plan(experiment, folder)
    standing, problems = find_standing(experiment, plan, allow_inexact)
    if standing is None and is_cleaned(plan):  # without checkpoints it would begin again
        for note in write_start(experiment, folder, finished=True):
            Recorders(listeners).note(note)
        return
    rundir.clean(folder)
    remove_unfinished(folder)
    finished = standing is not None and standing.position.finished
    repaired = list(write_start(experiment, folder, finished))
    sinks = make_sinks(experiment.config.record, listeners)
    recorders = Recorders([*listeners, *sinks])
    if local := [k for k in experiment.config.objects if k not in ("partition", "data")]:
        recorders.note(f"{', '.join(local)} of this process only: executor.kind = serial")
        builds = [k for k in local if _builds_networks(k, experiment)]
        if sealed := [k for k in local if k in ("objective", "sensor") or k in builds]:
            recorders.note(
                f"only this process can open the model, as {sealed[0]} is in no module: put its "
                "class in one to load the run elsewhere"
            )
    for note in (*experiment.notes, *repaired):
        recorders.note(note)
    if experiment.dataset.groups and experiment.config.tables["partition"]["kind"] != "by-group":
        kind = experiment.config.tables["partition"]["kind"]
        recorders.note(f"partition.kind = {kind!r} mixes the samples of sites; by-group keeps them")
    for problem in problems:
        recorders.note(f"a checkpoint is broken, the one before is used: {problem}")
    standing = repair(plan, standing, recorders)
    if standing and standing.position.finished:
        damage = find_lost_outputs(experiment, folder, standing)
        if not damage:
            return
        if marks_end(folder):  # else they are written for the first time
            recorders.note(f"{damage}: what the run leaves is written again from its checkpoint")
    if experiment.config.executor.kind != "serial" and not experiment.remote:
        announce(listeners, "starting workers")
    if start_executor is None:
        started = make_executor(experiment, recorders.note)
    else:
        started = start_executor(experiment, standing)
    with (
        _leaving_a_page(folder),
        _leaving_no_pieces(folder),
        ending(sinks),
        closing(started) as executor,
    ):
        if standing is None:
            announce(listeners, "measuring base lines")
            baseline = keep_baseline(experiment, folder)
            plan = replace(plan, baseline=baseline.describe() if baseline else "")
        player = Player(experiment.parts, executor, recorders, experiment.config.server)
        committed = standing.position.attempt if standing else 0
        loop = Loop(plan, player, rundir.next_attempt(folder, committed))
        standing = loop.run(standing or loop.start())
        write_outputs(experiment, folder, loop, standing)
        if sinks:
            announce(listeners, "waiting for tracking tools")


@contextmanager
def _leaving_a_page(folder: Path) -> Iterator[None]:
    """When the run fails, write the page of the rounds so far, with the reason."""
    try:
        yield
    except RunFailed as error:
        with suppress(CoterieError):  # no round yet, or a full disk: the first error is told
            write_report(folder, failure=str(error))
        raise


@contextmanager
def _leaving_no_pieces(folder: Path) -> Iterator[None]:
    """After an error, remove what workers were writing when they were ended."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        with suppress(CheckpointError):  # the first error is the one to be told
            rundir.clean(folder)
        raise


def _builds_networks(table: str, experiment: Experiment) -> bool:
    """Whether a part is a method that builds networks itself."""
    return table == "method" and type(experiment.parts.method).nets is not Method.nets
