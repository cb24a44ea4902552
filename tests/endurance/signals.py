"""SIGINT and SIGTERM at random times, to runs on every executor.

A command that gets a signal ends within five seconds with exit status 130, leaves no process
behind, and ends with the same bits when it is resumed. A run that had ended when the signal came is
no trial: another one is made.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
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
_ACTOR = "ray::SiteActor"  # Ray calls the processes of our actors so


def send(process: warm.Process, log: Path, out: Path, generator: random.Random) -> str:
    """Send a signal to a command that works on a run; what is wrong with its end."""
    chosen, started = generator.choice(SIGNALS), kills.children(process.pid)
    process.send_signal(chosen)
    begin = time.monotonic()
    code = process.wait()
    seconds, said = time.monotonic() - begin, log.read_text().splitlines()
    if code == 0 and (out / "report.html").exists():
        return sites.ENDED  # it was done before the signal came
    if code != 130:
        return f"{chosen.name} ended it with {code}: {said[-3:]}"
    if "Traceback" in " ".join(said):
        return f"{chosen.name}: a traceback: {said[-3:]}"
    if seconds > SECONDS:
        return f"{chosen.name} ended it after {seconds:.1f} s"
    return "" if kills.gone(started) else "a process outlived its run"


def interrupt(run: kills.Alone, out: Path, generator: random.Random) -> str:
    """Interrupt a run at a random time, and resume it; what is wrong."""
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
    return [pid for pid in pids if ray_nodes.name_of(pid).startswith(_ACTOR)]


@contextmanager
def cluster(folder: Path) -> Iterator[Trial]:
    """Runs on two nodes of Ray, which stay; what computed for a run must not."""
    with ray_nodes.two_nodes(folder / "ray", {ray_nodes.HEAD: 1, ray_nodes.OTHER: 1}) as nodes:
        os.environ.update(nodes.token)
        executor = {"kind": "ray", "workers": 2, "address": nodes.address}
        run = kills.Alone(folder, "ray-run", {**TABLES, "executor": executor})

        def trial(number: int) -> str:
            problem = interrupt(run, folder / f"signal-{number}", random.Random(number))
            left = _computing(nodes)
            return problem or ("" if kills.gone(left) else "an actor outlived its run")

        yield trial


@contextmanager
def deployed(folder: Path) -> Iterator[Trial]:
    """The server and a client of a deployed run, in turn."""
    root = sites.prepare(folder)
    yield lambda number: sites.disturb(folder / f"signal-{number}", root, number, send)
