"""Processes that race for one run directory."""

import random
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kills
import warm
from bench import Trial

SECONDS = 1.0  # within which a loser ends
ROUNDS = 10


def leave_lock(run: kills.Alone, out: Path, generator: random.Random) -> str:
    """Kill a run that holds the lock of its directory; what is wrong with what it leaves."""
    target = generator.randint(0, ROUNDS // 2)
    process = run.start(out)
    while process.poll() is None and (kills.count_rounds(out) < target or not _holder(out)):
        time.sleep(0.002)
    process.kill()
    process.wait()
    left = f"process {process.pid} on "
    return "" if _holder(out).startswith(left) else f"the killed run left the lock {_holder(out)!r}"


def _holder(out: Path) -> str:
    """Who the lock of a directory names."""
    lock = out / ".lock"
    return lock.read_text() if lock.exists() else ""


def race(words: list[str], logs: list[Path]) -> tuple[list[warm.Process], list[float]]:
    """Start two commands at once; they and how long after its own start each of them ended."""
    racers, begins = list[warm.Process](), list[float]()
    for log in logs:
        begins.append(time.monotonic())
        racers.append(warm.start(words, log))
    ends: dict[int, float] = {}
    while len(ends) < len(racers):
        for number, racer in enumerate(racers):
            if number not in ends and racer.poll() is not None:
                ends[number] = time.monotonic() - begins[number]
        time.sleep(0.002)
    return racers, [ends[number] for number in range(len(racers))]


@contextmanager
def races(folder: Path) -> Iterator[Trial]:
    """Two commands for one directory, every other one with a lock that a killed run left."""
    name = {"name": "toy_methods:TwoModels"}
    run = kills.Alone(folder, "race", {"run": {"rounds": ROUNDS}, "method": name})
    logs = [folder / f"race-{k}.log" for k in (0, 1)]

    def trial(number: int) -> str:
        out, words = folder / f"race-{number}", ["run", str(run.config)]
        if number % 2:
            if problem := leave_lock(run, out, random.Random(number)):
                return problem
            words.append("--resume")
        racers, seconds = race([*words, "--out", str(out)], logs)
        codes = [racer.wait() for racer in racers]
        if sorted(codes) != [0, 2]:
            return f"they ended with {codes}: {[log.read_text()[-200:] for log in logs]}"
        winner, loser = codes.index(0), codes.index(2)
        said = logs[loser].read_text().splitlines()[-1]
        same = kills.equal(run.out, out)
        shutil.rmtree(out)
        if not re.search(rf"is in use by process {racers[winner].pid} on ", said):
            return f"the loser says: {said}"
        if seconds[loser] > SECONDS:
            return f"the loser ended after {seconds[loser]:.2f} s"
        return "" if same else "the bits differ"

    yield trial
