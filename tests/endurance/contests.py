"""Processes that race for one run directory, and signals at random times."""

import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kills
import warm
from bench import Trial

EXECUTORS = ("serial", "processes")


@contextmanager
def races(folder: Path) -> Iterator[Trial]:
    """Two commands for one directory, every other one with a lock that a killed process left."""
    name = {"name": "toy_methods:TwoModels"}
    run = kills.Alone(folder, "race", {"run": {"rounds": 10}, "method": name})

    def trial(number: int) -> str:
        out, logs = folder / f"race-{number}", [folder / f"race-{k}.log" for k in (0, 1)]
        if number % 2:
            out.mkdir()
            (out / ".lock").write_text("process 1 on elsewhere")
        words = ["run", str(run.config), "--out", str(out)]
        racers = [warm.start(words, log) for log in logs]
        begin, ends = time.monotonic(), dict[int, float]()
        while len(ends) < len(racers):
            for racer in racers:
                if racer.pid not in ends and racer.poll() is not None:
                    ends[racer.pid] = time.monotonic() - begin
            time.sleep(0.002)
        codes = sorted(racer.wait() for racer in racers)
        if codes != [0, 2]:
            return f"they ended with {codes}: {[log.read_text()[-200:] for log in logs]}"
        winner, loser = sorted(racers, key=lambda racer: racer.wait())
        said = logs[racers.index(loser)].read_text().splitlines()[-1]
        same = kills.equal(run.out, out)
        shutil.rmtree(out)
        if not re.search(rf"is in use by process {winner.pid} on ", said):
            return f"the loser says: {said}"
        if ends[loser.pid] > ends[winner.pid]:
            return "the loser waited for the winner"
        return "" if same else "the bits differ"

    yield trial


@contextmanager
def signals(folder: Path) -> Iterator[Trial]:
    """SIGINT and SIGTERM at random times, to runs on each executor."""
    method = {"name": "toy_methods:TwoModels"}
    runs = {
        kind: kills.Alone(
            folder, kind, {"run": {"rounds": 10}, "method": method, "executor": {"kind": kind}}
        )
        for kind in EXECUTORS
    }

    def trial(number: int) -> str:
        kind, generator = EXECUTORS[number % 2], random.Random(number)
        chosen = generator.choice((signal.SIGINT, signal.SIGTERM))
        run, out = runs[kind], folder / f"signal-{number}"
        process = run.start(out)
        log = folder / f"signal-{number}.log"
        while process.poll() is None and not log.exists():  # the command has not begun
            time.sleep(0.001)
        time.sleep(generator.uniform(0.02, 0.9 * run.duration))
        started = kills.children(process.pid)
        process.send_signal(chosen)
        begin = time.monotonic()
        code = process.wait()
        seconds, said = time.monotonic() - begin, log.read_text().splitlines()
        problem = ""
        if code == 0 and (out / "report.html").exists():
            pass  # it was done before the signal came
        elif code != 130:
            problem = f"{chosen.name} ended it with {code}: {said[-3:]}"
        elif "Traceback" in " ".join(said):
            problem = f"{chosen.name}: a traceback: {said[-3:]}"
        elif seconds > 5.0:
            problem = f"{chosen.name} ended it after {seconds:.1f} s"
        elif not kills.gone(started):
            problem = "a worker outlived its run"
        problem = problem or run.finish(out)
        shutil.rmtree(out, ignore_errors=True)
        return f"{kind}: {problem}" if problem else ""

    yield trial
