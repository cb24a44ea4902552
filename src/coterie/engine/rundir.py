"""The run directory: locking, counting attempts, writing models, and removing leftovers."""

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from safetensors.torch import save

from coterie.core import files
from coterie.core.bundle import Tensors
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.files import replace_durably

_LOCK, _ATTEMPT = ".lock", ".attempt"
_READS, _PAUSE = 10, 0.05  # seconds


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a run directory by `flock`, which the kernel releases when the process dies."""
    try:
        files.mkdir(folder)
        # Python opens files with close-on-exec, so that workers do not inherit the lock
        file = files.open_to_write(folder / _LOCK, "a+b")
    except OSError as error:
        raise CheckpointError(
            f"cannot use the run directory {folder}: {error.strerror}; choose another --out"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(file)
            raise ConfigError(f"{folder} is in use by {holder}; choose another --out") from None
        with files.disk_errors(folder / _LOCK):
            files.truncate(file, 0)
            files.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def _read_holder(file: IO[bytes]) -> str:
    """Read who holds the lock; the holder writes its name shortly after locking."""
    for _ in range(_READS):
        time.sleep(_PAUSE)
        file.seek(0)
        if name := file.read().strip():
            return name.decode(errors="replace")
    return "another process"


def write_weights(path: Path, weights: Tensors) -> str:
    """Write a model to a safetensors file, atomically, and return its SHA-256."""
    copies = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
    data: bytes = save(copies, metadata={"format": "pt"})
    replace_durably(path, data)
    return hashlib.sha256(data).hexdigest()


def next_attempt(folder: Path) -> int:
    """Number this start of the run; if the counter is lost, the client states show the last one."""
    path = folder / _ATTEMPT
    states = folder.glob("clients/*/*.*.safetensors")
    number = 1 + max((int(state.name.split(".")[1]) for state in states), default=0)
    with contextlib.suppress(OSError, ValueError):
        number = max(number, int(path.read_text()) + 1)
    replace_durably(path, str(number).encode())
    return number


def clean(folder: Path) -> None:
    """Remove incomplete files of a killed process; needs the lock, before workers are started."""
    for pattern in ("*.tmp", "clients/*/*.tmp", "personal/*.tmp", "checkpoints/best/*.tmp"):
        for incomplete in folder.glob(pattern):
            with files.disk_errors(incomplete):
                files.remove_file(incomplete)
    for leftover in [folder / "spool", folder / "evaluation", *folder.glob("checkpoints/*.tmp")]:
        files.remove_tree(leftover)


def has_foreign_files(folder: Path) -> bool:
    """Whether the folder contains files that are not from a run.

    A run that was killed at its start leaves its first files, complete or as `NAME.PID.tmp`.
    """
    names = (_LOCK, _ATTEMPT, "federation.json", "partition.json", "model.json", "config.toml")
    first = "|".join(map(re.escape, names))
    own = re.compile(rf"({first})(\.\d+\.tmp)?")
    return not all(own.fullmatch(path.name) for path in folder.iterdir())


def is_used(folder: Path) -> bool:
    """Whether a run was started in this folder."""
    return any((folder / name).exists() for name in ("config.toml", "metrics.jsonl", "checkpoints"))
