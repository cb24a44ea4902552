"""Processes that race for one run directory."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kills
import warm
from bench import Trial


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
