"""Disks that fill up or break at one operation after the other, in the main process and a worker.

After a fault: exit code 5, one line with path, reason and the bytes that a full disk had no room
for, no temporary file, a checkpoint that loads, and `--resume` from it to the bits of a run on a
good disk. All operations of two runs are tried: of one whose clients keep states, and of one whose
server keeps big arrays. SIGKILL comes before all operations of these, and of every stateful method.
"""

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kills
import warm
from bench import Trial

import coterie
import toy
from coterie.core.errors import CoterieError
from coterie.engine.checkpoints import CheckpointStore
from disk_orders import COUNT, find_report
from faulty_disk import FAULTS, REMOVING, Fault, in_child, wrap_operations, wrapped
from resuming import ATTEMPT

SMALL: dict[str, Any] = {
    "run": {"rounds": 2},
    "checkpoint": {"every": 1, "keep": 1},
    "net": {"norm": "bn", "bn_buffers": "local"},
    "partition": {"clients": 2},
}
SUBJECTS = ("toy_methods:TwoModels", "toy_methods:Staged")
# how many trials a part has, at least one for each operation (and fault) of its runs
KILLS, FAULTY, FAULTY_WORKER = 2000, 1500, 300
SETTLED = 4.0  # seconds
ENDED = "the run is done"  # before the operation that was to fail
Remains = tuple[list[dict[str, Any]], dict[str, bytes]]


def remains(out: Path) -> Remains:
    """What a run must leave."""
    return toy.trace(out), toy.outputs(out)


def settings(orders: Path, workers: int = 0, method: str = SUBJECTS[0]) -> dict[str, Any]:
    """The tables of a run whose clients follow orders, in a worker or in this process."""
    objective = {"name": "disk_orders:Obeying", "orders": str(orders)}
    executor = {"kind": "processes", "workers": workers} if workers else {"kind": "serial"}
    return {**SMALL, "method": {"name": method}, "objective": objective, "executor": executor}


def tables_of(data: Path, subject: str, orders: Path) -> dict[str, Any]:
    """All tables of a run in one process: of a toy method, or of a conformance case."""
    if subject in SUBJECTS:
        return kills.merge(toy.tables(data), settings(orders, method=subject))
    small = {"run": {"rounds": 2, "seed": 11}, "partition": SMALL["partition"]}
    tables = kills.merge(kills.settings(subject), {**small, "checkpoint": SMALL["checkpoint"]})
    return kills.merge(toy.tables(data), {**tables, "executor": {"kind": "serial"}})


def judge(out: Path, error: CoterieError | None, harmless: bool, needed: int = 0) -> str:
    """What is wrong with the files and the message after a fault.

    `needed` are the bytes of a write that failed: a message has them, or those of the whole file.
    """
    if error is None:
        return "" if harmless else "nobody noticed"
    said = str(error)
    if error.exit_code != 5 or "\n" in said:
        return f"exit code {error.exit_code}: {said}"
    reason = any(os.strerror(code) in said for code in (5, 28)) or harmless
    if str(out) not in said or not reason:
        return f"the message has no path or reason: {said}"
    size = re.search(r"\(([\d,]+) bytes needed\)", said)
    if needed and (size is None or int(size[1].replace(",", "")) < needed):
        return f"the message does not say that {needed:,} bytes were needed: {said}"
    if (left := find_temporary(out)) and not harmless:
        return f"left over: {left}"
    if rounds := CheckpointStore(out).rounds():
        newest = CheckpointStore(out).load_newest()
        if newest is None or newest[1].round != rounds[-1]:
            return f"of the checkpoints {rounds} the newest does not load"
    return ""


def find_temporary(out: Path) -> list[str]:
    """List what a run must not leave: temporary files, and folders for files that are made."""
    hidden = (path for path in out.rglob(".*") if path.name not in ATTEMPT)
    return sorted(str(path.relative_to(out)) for path in (*out.rglob("*.tmp"), *hidden))


def fail_in_main(
    data: Path, out: Path, victim: int, kind: str, expected: Remains, method: str = SUBJECTS[0]
) -> str:
    """Let an operation of the main process fail; what is wrong then, or `ENDED`."""
    fault, error = Fault(victim, kind), None
    tables = settings(out.with_suffix(".orders"), method=method)
    try:
        with wrapped(fault):
            toy.run(data, out, **tables)
    except CoterieError as raised:
        error = raised
    if not fault.name:
        return ENDED
    # what cannot be removed stays, and what the data cache only keeps to save time is lost
    harmless = fault.name in REMOVING or not fault.path.startswith(str(out))
    problem = judge(out, error, harmless, 0 if harmless else fault.needed)
    return problem or resume(data, out, tables, expected)


def fail_in_worker(
    data: Path, out: Path, victim: int, kind: str, expected: Remains, method: str = SUBJECTS[0]
) -> str:
    """Let an operation of a worker fail; what is wrong then, or `ENDED`."""
    orders, error = out.with_suffix(".orders"), None
    tables, report = settings(orders, workers=1, method=method), find_report(orders)
    orders.write_text(f"{victim} {kind}")
    try:
        toy.run(data, out, **tables)
    except CoterieError as raised:
        error = raised
    orders.unlink()
    if not report.exists():
        return ENDED if error is None else f"without a fault: {error}"
    failed, needed = report.read_text().split()
    report.unlink()
    harmless = failed in REMOVING
    return judge(out, error, harmless, int(needed)) or resume(data, out, tables, expected)


def resume(data: Path, out: Path, tables: dict[str, Any], expected: Remains) -> str:
    """Resume a run; what is wrong with its start, or differs from one that was left alone."""
    starts, committed = toy.Starts(), kills.count_committed(out, tables["checkpoint"]["every"])
    tables = kills.merge(toy.tables(data), tables)
    coterie.run(tables, out=out, resume=True, recorders=[starts], progress=False)
    if problem := kills.restarted(min(starts.rounds, default=None), committed):
        return problem
    found = remains(out)
    if found[0] != expected[0]:
        return "other rounds after --resume"
    different = [name for name in expected[1] if found[1].get(name) != expected[1][name]]
    different = [name for name in different if name != "model.json"]  # it names the orders
    if left := find_temporary(out):
        return f"left over after --resume: {left}"
    return f"other files after --resume: {different}" if different else ""


def count_in_main(data: Path, folder: Path, method: str) -> int:
    """Count the operations of a run in which all happens in one process."""
    seen = 0

    def count(name: str, number: int, operation: Any) -> Any:
        nonlocal seen
        seen = number + 1
        return operation

    tables = tables_of(data, method, folder / "counted.orders")
    with wrapped(count):
        coterie.run(tables, out=folder / "counted", progress=False)
    shutil.rmtree(folder / "counted")
    return seen


def count_in_worker(data: Path, folder: Path, method: str) -> int:
    """Count the operations of the worker of a run, from its first batch on."""
    orders = folder / "counted.orders"
    orders.write_text(COUNT)
    toy.run(data, folder / "counted", **settings(orders, workers=1, method=method))
    shutil.rmtree(folder / "counted")
    orders.unlink()
    return int(find_report(orders).read_text())


class Operations:
    """All file operations of some runs, and what is left of these on a good disk."""

    def __init__(
        self, folder: Path, count: Any, trials: int, subjects: Sequence[str] = SUBJECTS
    ) -> None:
        self.data, self.expected = toy.write_data(folder / "toy.npz"), dict[str, Remains]()
        self._all: list[tuple[str, int]] = []  # of which run, and the number in it
        for method in subjects:
            whole = folder / method.rpartition(":")[2]
            tables = tables_of(self.data, method, whole.with_suffix(".orders"))
            coterie.run(tables, out=whole, progress=False)
            self.expected[method] = remains(whole)
        # the data cache notes the hashes of files that have not changed for a while; from then on
        # a run has the same operations each time
        time.sleep(SETTLED)
        for method in subjects:
            settled = folder / f"settled-{method.rpartition(':')[2]}"
            tables = tables_of(self.data, method, settled.with_suffix(".orders"))
            coterie.run(tables, out=settled, progress=False)
        for method in subjects:
            total = count(self.data, folder, method)
            self._all += [(method, victim) for victim in range(total)]
        assert len(self._all) <= trials, f"{len(self._all)} operations, and {trials} trials of them"

    def choose(self, number: int) -> tuple[str, int]:
        """The operation of a trial."""
        return self._all[number % len(self._all)]


def _fail_each(folder: Path, fail: Any, count: Any, trials: int) -> Iterator[Trial]:
    operations = Operations(folder, count, trials // len(FAULTS))

    def trial(number: int) -> str:
        turn, fault = divmod(number, len(FAULTS))
        (method, victim), out = operations.choose(turn), folder / f"run-{number}"
        expected, kind = operations.expected[method], FAULTS[fault]
        said = fail(operations.data, out, victim, kind, expected, method)
        shutil.rmtree(out)
        return f"{method}, operation {victim}, {kind}: {said}" if said else ""

    yield trial


@contextmanager
def main_process(folder: Path) -> Iterator[Trial]:
    """Every operation of the runs in one process, with every fault."""
    yield from _fail_each(folder, fail_in_main, count_in_main, FAULTY)


@contextmanager
def worker(folder: Path) -> Iterator[Trial]:
    """Every operation of the worker of the runs, with every fault."""
    yield from _fail_each(folder, fail_in_worker, count_in_worker, FAULTY_WORKER)


@contextmanager
def full(folder: Path) -> Iterator[Trial]:
    """A file system in memory that is really full, then enlarged; needs the right to mount one."""
    run = kills.Alone(folder, "full", {**SMALL, "method": {"name": "toy_methods:TwoModels"}})
    needed = sum(path.stat().st_size for path in run.out.rglob("*") if path.is_file())
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000):  # CLONE_NEWNS: nobody else sees what is mounted here
        raise PermissionError(
            ctypes.get_errno(), "a name space for mounts needs the rights of root"
        )
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)

    def trial(number: int) -> str:
        size = random.Random(number).randint(8, max(9, needed // 1024)) * 1024
        place = folder / "disk"
        place.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        subprocess.run(mount, check=True)
        try:
            out = place / "run"
            code, log = run.start(out).wait(), place.with_name("run.log")
            shutil.copy(place / "run.log", log)
            said = log.read_text().splitlines()
            if code not in (0, 5):
                return f"{size} bytes: exit code {code}: {said[-1:]}"
            if code == 5 and not any("No space left on device" in line for line in said):
                return f"{size} bytes: {said[-1:]}"
            if left := find_temporary(out):
                return f"{size} bytes: left over: {left}"
            subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
            return run.finish(out)
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)

    warm.import_all(folder / "full-alone.log")
    yield trial


@contextmanager
def killed(folder: Path) -> Iterator[Trial]:
    """SIGKILL before one operation after the other, of the runs in one process."""
    operations = Operations(folder, count_in_main, KILLS, (*SUBJECTS, *kills.STATEFUL))

    def trial(number: int) -> str:
        (method, victim), out = operations.choose(number), folder / f"run-{number}"
        tables = tables_of(operations.data, method, folder / "orders")

        def die(name: str, seen: int, operation: Any) -> Any:
            if seen == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation

        def work() -> None:
            wrap_operations(die)
            coterie.run(tables, out=out, progress=False)

        status = in_child(work)
        if status != -signal.SIGKILL:
            return f"{method}, operation {victim}: it ended with {status}"
        said = resume(operations.data, out, tables, operations.expected[method])
        shutil.rmtree(out)
        return f"{method}, operation {victim}: {said}" if said else ""

    yield trial
