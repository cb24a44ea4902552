"""A disk that fails at one read after the other while a killed run is resumed.

The resumed run ends with an error that names the file, or with the bits of a run on a good disk; it
may have gone back one checkpoint for that, and no further.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import disk
import kills
from bench import Trial

import toy
from coterie.core.errors import CoterieError
from coterie.data.datasets import default_cache
from faulty_reads import BadSector, reading

TABLES: dict[str, Any] = {
    **disk.SMALL,
    "checkpoint": {"every": 1, "keep": 2},
    "executor": {"kind": "serial"},
}

METHODS = {"toy_methods:TwoModels": 4, "toy_methods:Staged": 1}  # states; big arrays, more rounds


class Killed:
    """A run that was killed after its third round, and one that was not."""

    def __init__(self, data: Path, folder: Path, method: str) -> None:
        self.data, self.out = data, folder / "killed"
        self.tables = {**TABLES, "method": {"name": method}, "run": {"rounds": METHODS[method]}}
        toy.run(data, folder / "whole", **self.tables)
        self.expected = disk.remains(folder / "whole")
        try:
            stop = toy.StopAfter(2, toy.Killed)
            toy.run(data, self.out, recorders=[stop], **self.tables)
        except toy.Killed:
            pass

    def fail(self, out: Path, victim: int) -> str:
        """Resume a copy of it while a read fails; what is wrong then, or `disk.ENDED`."""
        shutil.copytree(self.out, out)
        fault, starts = BadSector(victim, (out, default_cache())), toy.Starts()
        committed = kills.count_committed(out, self.tables["checkpoint"]["every"])
        try:
            with reading(fault):
                toy.run(self.data, out, resume=True, recorders=[starts], **self.tables)
        except CoterieError as error:
            problem = self._judge(fault, error)
        else:  # one checkpoint back at most
            problem = kills.restarted(min(starts.rounds, default=None), committed - 1)
        if not problem and not fault.path:
            problem = disk.ENDED
        problem = problem or disk.resume(self.data, out, self.tables, self.expected)
        shutil.rmtree(out)
        return problem if problem in ("", disk.ENDED) else f"{fault.path}: {problem}"

    def count(self, out: Path) -> int:
        """Count the reads of resuming it."""
        shutil.copytree(self.out, out)
        with reading(BadSector(-1, (out, default_cache()))) as fault:
            toy.run(self.data, out, resume=True, **self.tables)
        shutil.rmtree(out)
        return fault.seen

    def _judge(self, fault: BadSector, error: CoterieError) -> str:
        """What is wrong with the message."""
        said = str(error)
        if "\n" in said or error.exit_code not in (2, 3, 5):
            return f"exit code {error.exit_code}: {said}"
        named = fault.path in said and os.strerror(5) in said
        return "" if named else f"the message has no path or reason: {said}"


@contextmanager
def bench(folder: Path) -> Iterator[Trial]:
    """Trials by read, of two methods in turn."""
    data, runs = toy.write_data(folder / "toy.npz"), list[Killed]()
    for number, method in enumerate(METHODS):
        runs.append(Killed(data, folder / str(number), method))
    time.sleep(disk.SETTLED)  # then the data cache notes hashes, and later runs read less
    for run in runs:
        run.count(folder / "counted")
    total = [run.count(folder / "counted") for run in runs]

    def trial(number: int) -> str:
        read, chosen = divmod(number, len(runs))
        said = runs[chosen].fail(folder / f"run-{number}", read % total[chosen])
        said = "no read failed" if said == disk.ENDED else said
        return said and f"{list(METHODS)[chosen]}, read {read % total[chosen]}: {said}"

    yield trial
