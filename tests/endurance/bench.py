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
FOLDERS = ("", "endurance", "conformance", "unit/core", "unit/deploy", "unit/engine", "unit/kit")
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


def prepare() -> None:
    """Let this process find the modules of tests, compute in one thread, and fork safely."""
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    sys.path[:0] = [str(TESTS / name) for name in FOLDERS if str(TESTS / name) not in sys.path]


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder for trials, in memory if possible, with a data cache of its own."""
    parent = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="ce", dir=parent) as name:
        os.environ["COTERIE_CACHE"] = str(Path(name) / "cache")
        yield Path(name)


def call(command: Sequence[str], first: int, trials: int) -> tuple[int, str]:
    """Run a command that does some trials; how many failed, and its last line if one did.

    A command that ends with status 0 and says nothing like `19 of 20` did all of them well.
    """
    words = [word.format(n=trials, first=first) for word in command]
    folders = [str(ROOT / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, text=True, capture_output=True
    )
    lines = (ended.stdout + ended.stderr).strip().splitlines() or [""]
    counts = [match for line in lines if (match := re.search(r"(\d+) of (\d+)", line))]
    if ended.returncode == 0:
        return 0, ""
    lacking = int(counts[-1][2]) - int(counts[-1][1]) if counts else trials
    return max(1, lacking), f"exit status {ended.returncode}: {lines[-1]}"
