"""SIGINT and SIGTERM at random times, to runs on every executor.

A command that gets a signal ends within five seconds with exit status 130, leaves no process
behind, and ends with the same bits when it is resumed. A run that had recorded all its rounds when
the signal came, and ended, is no trial: another one is made.
"""

import os
import random
import shutil
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kills
import sites
import warm
from bench import Trial

import ray_nodes

LOCAL = ("serial", "processes")
SECONDS = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TABLES = {"run": {"rounds": 10}, "method": {"name": "toy_methods:TwoModels"}}


def send(process: warm.Process, log: Path, out: Path, generator: random.Random) -> str:
    """Send a signal to a command that works on a run; what is wrong with its end."""
    chosen, started = generator.choice(SIGNALS), set(kills.children(process.pid))
    recorded = kills.count_rounds(out)
    process.send_signal(chosen)
    seconds, code = _wait(process, started), process.wait()
    said = log.read_text().splitlines()
    if code == 0 and recorded == count_planned(out):
        return sites.ENDED  # it was done before the signal came
    if code == 0:
        return f"{chosen.name} after {recorded} rounds was ignored"
    if code != 130:
        return f"{chosen.name} ended it with {code}: {said[-3:]}"
    if "Traceback" in " ".join(said):
        return f"{chosen.name}: a traceback: {said[-3:]}"
    if seconds > SECONDS:
        return f"{chosen.name} ended it after {seconds:.1f} s"
    # what is left of the time, or one look
    return "" if kills.gone(started, max(0.1, SECONDS - seconds)) else "a process outlived its run"


def _wait(process: warm.Process, started: set[int]) -> float:
    """Wait for the end of a command, and add the processes it has until then; the seconds."""
    begin = time.monotonic()
    while process.poll() is None:
        started.update(kills.children(process.pid))
        if time.monotonic() - begin > warm.DEADLINE:
            process.kill()
        time.sleep(0.01)
    return time.monotonic() - begin


def count_planned(out: Path) -> int:
    """Count the rounds that a run is to have."""
    return int(tomllib.loads((out / "config.toml").read_text())["run"]["rounds"])


def interrupt(
    run: kills.Alone,
    out: Path,
    generator: random.Random,
    computing: Callable[[], list[int]] = list,
) -> str:
    """Interrupt a run at a random time, and resume it; what is wrong.

    `computing` lists processes that nobody started for the command, and that must end with it.
    """
    said, log = sites.ENDED, out.with_name(f"{out.name}.log")
    try:
        while said == sites.ENDED:
            shutil.rmtree(out, ignore_errors=True)
            log.unlink(missing_ok=True)
            process = run.start(out)
            while process.poll() is None and not log.exists():  # the command has not begun
                time.sleep(0.001)
            time.sleep(generator.uniform(0.02, 0.9 * run.duration))
            said = send(process, log, out, generator)
        if not said and not kills.gone(computing(), SECONDS):
            said = "what computed for a run outlived it"
        return said or run.finish(out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


@contextmanager
def local(folder: Path) -> Iterator[Trial]:
    """Runs in one process, and in worker processes."""
    runs = {
        kind: kills.Alone(folder, kind, {**TABLES, "executor": {"kind": kind}}) for kind in LOCAL
    }

    def trial(number: int) -> str:
        kind = LOCAL[number % len(LOCAL)]
        problem = interrupt(runs[kind], folder / f"signal-{number}", random.Random(number))
        return f"{kind}: {problem}" if problem else ""

    yield trial


def _computing(nodes: ray_nodes.Nodes) -> list[int]:
    """The processes of a cluster that compute for a run."""
    pids = [pid for process in nodes.started.values() for pid in ray_nodes.descendants(process.pid)]
    return [pid for pid in pids if ray_nodes.name_of(pid).startswith(ray_nodes.ACTOR)]


@contextmanager
def cluster(folder: Path) -> Iterator[Trial]:
    """Runs on two nodes of Ray, which stay; what computed for a run must not."""
    with ray_nodes.two_nodes(folder / "ray", {ray_nodes.HEAD: 1, ray_nodes.OTHER: 1}) as nodes:
        os.environ.update(nodes.token)
        executor = {"kind": "ray", "workers": 2, "address": nodes.address}
        run = kills.Alone(folder, "ray-run", {**TABLES, "executor": executor})

        def trial(number: int) -> str:
            out, generator = folder / f"signal-{number}", random.Random(number)
            return interrupt(run, out, generator, lambda: _computing(nodes))

        yield trial


@contextmanager
def deployed(folder: Path) -> Iterator[Trial]:
    """The server and a client of a deployed run, in turn."""
    root = sites.prepare(folder)
    yield lambda number: sites.disturb(folder / f"signal-{number}", root, number, send)
