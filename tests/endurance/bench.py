"""What the parts of `run.py` are made of: trials, their outcomes, and a place to work in."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
    with TemporaryDirectory(prefix="ce", dir=parent) as name:
        os.environ["COTERIE_CACHE"] = str(Path(name) / "cache")
        try:
            yield Path(name)
        finally:
            del os.environ["COTERIE_CACHE"]
            if before is not None:
                os.environ["COTERIE_CACHE"] = before


def call(command: Sequence[str], first: int, trials: int) -> tuple[int, int, str]:
    """Run a command that does some trials; how many were done, how many failed, its last line.

    It says `19 of 20`, or as pytest `19 passed`; else its exit status speaks for all of them.
    """
    words = [word.format(n=trials, first=first) for word in command]
    folders = [str(ROOT / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, text=True, capture_output=True
    )
    lines = (ended.stdout + ended.stderr).strip().splitlines() or [""]
    pairs = [
        (int(good), int(all_)) for good, all_ in re.findall(r"(\d+) of (\d+)", "\n".join(lines))
    ]
    if passed := re.search(r"(\d+) passed", lines[-1]):
        failed = re.search(r"(\d+) failed", lines[-1])
        pairs = [(int(passed[1]), int(passed[1]) + (int(failed[1]) if failed else 0))]
    good, tried = pairs[-1] if pairs else (trials * (ended.returncode == 0), trials)
    if ended.returncode == 0:
        return tried, 0, ""
    return tried, max(1, tried - good), f"exit status {ended.returncode}: {lines[-1]}"
