"""What the parts of `run.py` are made of: trials, their outcomes, and a place to work in."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
FOLDERS = (
    "",
    "endurance",
    "conformance",
    "oracles",
    "unit/core",
    "unit/deploy",
    "unit/engine",
    "unit/kit",
)
_MEMORY = Path("/dev/shm")
_CALL_SECONDS = 3 * 3600.0  # that a command may take
_END_SECONDS = 30.0  # that a command may take to end
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Trial = Callable[[int], str]  # does the n-th trial; returns what was wrong, or ""
Bench = Callable[[Path], AbstractContextManager[Trial]]


@dataclass(frozen=True)
class Part:
    """Trials that hold one promise."""

    name: str
    promise: int  # its number on the page
    done: str  # what a trial does
    trials: int  # how many `make endurance` does
    bench: Bench | None = None  # None: it is a command
    command: tuple[str, ...] = ()  # {n}: trials of one call, {first}: the number of its first
    step: int = 1  # trials that one call of the command does


def compute_in_one_thread() -> None:
    """Make torch, which is imported later, compute in one thread: such a process can be forked."""
    os.environ.update(dict.fromkeys(_THREADS, "1"))


def find_modules() -> None:
    """Let this process find the modules of tests."""
    sys.path[:0] = [str(TESTS / name) for name in FOLDERS if str(TESTS / name) not in sys.path]


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder for trials, in memory if possible, with a data cache of its own."""
    parent = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    before = os.environ.get("COTERIE_CACHE")
    folder = Path(mkdtemp(prefix="ce", dir=parent))
    os.environ["COTERIE_CACHE"] = str(folder / "cache")
    try:
        yield folder
    finally:
        del os.environ["COTERIE_CACHE"]
        if before is not None:
            os.environ["COTERIE_CACHE"] = before
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder, in which a process that was killed may still write."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    print(f"{folder} could not be removed", file=sys.stderr)


def call(command: Sequence[str], first: int, trials: int) -> tuple[int, int, str]:
    """Run a command that does some trials; how many were done, how many failed, its last line.

    It says `19 of 20`, or as pytest `19 passed`; else its exit status speaks for all of them.
    """
    words = [word.format(n=trials, first=first) for word in command]
    folders = [str(ROOT / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    # in a session of its own, so that Ctrl-C comes to it once, from here
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said = "".join(process.communicate(timeout=_CALL_SECONDS))
    except subprocess.TimeoutExpired:
        _end(process)
        return trials, trials, f"it was ended: not done after {_CALL_SECONDS:,.0f} s"
    except BaseException:
        _end(process)
        raise
    lines = said.strip().splitlines() or [""]
    pairs = [
        (int(good), int(all_)) for good, all_ in re.findall(r"(\d+) of (\d+)", "\n".join(lines))
    ]
    if passed := re.search(r"(\d+) passed", lines[-1]):
        failed = re.search(r"(\d+) failed", lines[-1])
        pairs = [(int(passed[1]), int(passed[1]) + (int(failed[1]) if failed else 0))]
    good, tried = pairs[-1] if pairs else (trials * (process.returncode == 0), trials)
    if process.returncode == 0:
        return tried, 0, ""
    return tried, max(1, tried - good), f"exit status {process.returncode}: {lines[-1]}"


def _end(process: "subprocess.Popen[str]") -> None:
    """Interrupt a command; kill it and its group if it does not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
