"""Disks that fill up or break at one operation after the other, in the main process and a worker.

After a fault: exit code 5, one line with path, reason and the bytes that a full disk had no room
for, no temporary file, a checkpoint that loads, and `--resume` to the bits of a run on a good disk.
"""

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kills
import warm
from bench import Trial

import toy
from coterie.core.errors import CoterieError
from coterie.engine.checkpoints import CheckpointStore
from faulty_disk import FAULTS, REMOVING, Fault, in_child, wrap_operations, wrapped

SMALL: dict[str, Any] = {
    "run": {"rounds": 2},
    "checkpoint": {"every": 1, "keep": 1},
    "net": {"norm": "bn", "bn_buffers": "local"},
    "partition": {"clients": 2},
}
ENDED = "the run is done"  # before the operation that was to fail
Remains = tuple[list[dict[str, Any]], dict[str, bytes]]


def remains(out: Path) -> Remains:
    """What a run must leave."""
    return toy.trace(out), toy.outputs(out)


def settings(orders: Path, workers: int = 0) -> dict[str, Any]:
    """The tables of a run whose clients follow orders, in a worker or in this process."""
    method = {"name": "faulty_disk:OnFaultyDisk", "orders": str(orders)}
    executor = {"kind": "processes", "workers": workers} if workers else {"kind": "serial"}
    return {**SMALL, "method": method, "executor": executor}


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
    left = [str(path.relative_to(out)) for path in out.rglob("*.tmp")]
    if left and not harmless:
        return f"left over: {left}"
    if rounds := CheckpointStore(out).rounds():
        newest = CheckpointStore(out).load_newest()
        if newest is None or newest[1].round != rounds[-1]:
            return f"of the checkpoints {rounds} the newest does not load"
    return ""


def fail_in_main(data: Path, out: Path, victim: int, kind: str, expected: Remains) -> str:
    """Let an operation of the main process fail; what is wrong then, or `ENDED`."""
    fault, error, tables = Fault(victim, kind), None, settings(out.with_suffix(".orders"))
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


def fail_in_worker(data: Path, out: Path, victim: int, kind: str, expected: Remains) -> str:
    """Let an operation of a worker fail; what is wrong then, or `ENDED`."""
    orders, error = out.with_suffix(".orders"), None
    orders.write_text(f"{victim} {kind}")
    tables = settings(orders, workers=1)
    try:
        toy.run(data, out, **tables)
    except CoterieError as raised:
        error = raised
    orders.unlink()
    log = Path(f"{orders}.fault")
    needed = int(log.read_text()) if log.exists() else 0
    log.unlink(missing_ok=True)
    if error is None:
        return ENDED if remains(out)[0] == expected[0] else "nobody noticed"
    return judge(out, error, harmless=False, needed=needed) or resume(data, out, tables, expected)


def resume(data: Path, out: Path, tables: dict[str, Any], expected: Remains) -> str:
    """Resume a run; what differs from one that was left alone."""
    toy.run(data, out, resume=True, **tables)
    found = remains(out)
    if found[0] != expected[0]:
        return "other rounds after --resume"
    different = [name for name in expected[1] if found[1].get(name) != expected[1][name]]
    different = [name for name in different if name != "model.json"]  # it names the orders
    if left := [path.name for path in out.rglob("*.tmp")]:
        return f"left over after --resume: {left}"
    return f"other files after --resume: {different}" if different else ""


def _count(data: Path, folder: Path) -> int:
    """Count the operations of a run in which all happens in one process."""
    seen = 0

    def count(name: str, number: int, operation: Any) -> Any:
        nonlocal seen
        seen = number + 1
        return operation

    with wrapped(count):
        toy.run(data, folder / "counted", **settings(folder / "counted.orders"))
    return seen


def _every_operation(folder: Path, fail: Any) -> Iterator[Trial]:
    data = toy.write_data(folder / "toy.npz")
    toy.run(data, folder / "whole", **settings(folder / "whole.orders"))
    expected, total = remains(folder / "whole"), _count(data, folder)

    def trial(number: int) -> str:
        victim, kind = number // len(FAULTS) % total, FAULTS[number % len(FAULTS)]
        out = folder / f"run-{number}"
        said = str(fail(data, out, victim, kind, expected))
        shutil.rmtree(out)
        return "" if said in ("", ENDED) else f"operation {victim}, {kind}: {said}"

    yield trial


@contextmanager
def main_process(folder: Path) -> Iterator[Trial]:
    """Every operation of a run in one process, with every fault."""
    yield from _every_operation(folder, fail_in_main)


@contextmanager
def worker(folder: Path) -> Iterator[Trial]:
    """Every operation of the worker of a run, with every fault."""
    yield from _every_operation(folder, fail_in_worker)


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
            if list(out.rglob("*.tmp")):
                return f"{size} bytes: left over: {list(out.rglob('*.tmp'))}"
            subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
            return run.finish(out)
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)

    warm.import_all(folder / "full-alone.log")
    yield trial


@contextmanager
def killed(folder: Path) -> Iterator[Trial]:
    """SIGKILL before one operation after the other, of a run in one process."""
    data = toy.write_data(folder / "toy.npz")
    toy.run(data, folder / "whole", **settings(folder / "orders"))
    expected, total = remains(folder / "whole"), _count(data, folder)

    def trial(number: int) -> str:
        victim, out = number % total, folder / f"run-{number}"

        def die(name: str, seen: int, operation: Any) -> Any:
            if seen == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation

        def work() -> None:
            wrap_operations(die)
            toy.run(data, out, **settings(folder / "orders"))

        status = in_child(work)
        if status != -signal.SIGKILL:
            return f"operation {victim}: it ended with {status}"
        said = resume(data, out, settings(folder / "orders"), expected)
        shutil.rmtree(out)
        return f"operation {victim}: {said}" if said else ""

    yield trial
