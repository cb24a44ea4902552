"""A run directory belongs to one process at a time."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.files import replace_durably

_LOCK, _ATTEMPT = ".lock", ".attempt"
_LOOKS, _PAUSE = 10, 0.05  # seconds


class RunLock:
    """Holds a run directory by `flock`: the kernel lets go of it when the process dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def __enter__(self) -> "RunLock":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # close-on-exec, as every file that Python opens: a worker never inherits the lock
            file = (self.folder / _LOCK).open("a+")
        except OSError as error:
            raise CheckpointError(
                f"cannot use the run directory {self.folder}: {error.strerror}; choose another "
                "--out"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                holder = _holder(file)
            raise ConfigError(
                f"{self.folder} is in use by {holder}; choose another --out"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _holder(file: IO[str]) -> str:
    """Who holds a lock; it writes its name, over that of the last one, a moment after taking it."""
    for _ in range(_LOOKS):
        time.sleep(_PAUSE)
        file.seek(0)
        if name := file.read().strip():
            return name
    return "another process"


def next_attempt(folder: Path) -> int:
    """Count this start of the run; clients' states tell of earlier ones if the count is lost."""
    path = folder / _ATTEMPT
    states = folder.glob("clients/*/*.*.safetensors")
    number = 1 + max((int(state.name.split(".")[1]) for state in states), default=0)
    with contextlib.suppress(OSError, ValueError, TypeError, OverflowError):
        number = max(number, int(json.loads(path.read_text())) + 1)
    replace_durably(path, str(number).encode())
    return number


def clean(folder: Path) -> None:
    """Remove what a killed process left half-done; the lock must be held, workers not started."""
    for pattern in ("*.tmp", "clients/*/*.tmp", "personal/*.tmp"):
        for broken in folder.glob(pattern):
            broken.unlink(missing_ok=True)
    for rest in [folder / "spool", folder / "evaluation", *folder.glob("checkpoints/*.tmp")]:
        shutil.rmtree(rest, ignore_errors=True)


def foreign(folder: Path) -> bool:
    """Whether there is something in this folder that no run has put there.

    A run that was killed as it began leaves some of its first files, whole or as `NAME.PID.tmp`.
    """
    first = "|".join(map(re.escape, (_LOCK, _ATTEMPT, "partition.json", "config.toml")))
    own = re.compile(rf"({first})(\.\d+\.tmp)?")
    return not all(own.fullmatch(path.name) for path in folder.iterdir())


def used(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return any((folder / name).exists() for name in ("config.toml", "metrics.jsonl", "checkpoints"))
