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

from coterie.core import files, paths
from coterie.core.bundle import Tensors
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.files import disk_errors, replace_durably
from coterie.engine.client_states import StateStore
from coterie.engine.in_place import open_in_place

_LOCK, _ATTEMPT = ".lock", ".attempt"
_FILES = (
    *(_LOCK, _ATTEMPT, "config.toml", "partition.json", "federation.json", "baseline.json"),
    *("metrics.jsonl", "model.json", "model.safetensors", "best.safetensors", "embedding.npz"),
    *("report.html", "progress.html", "cleaned.json"),
)
_FOLDERS = ("checkpoints", "clients", "blobs", "personal")
_MOST_ATTEMPTS = 10**9  # a higher count is damage
_READS, _PAUSE = 10, 0.05  # seconds
_LONGEST = 400  # bytes of a lock or a count that are looked at


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a run directory by `flock`, which the kernel releases when the process dies."""
    try:
        files.mkdir(folder)
        # Python opens files with close-on-exec, so that workers do not inherit the lock
        file = open_in_place(folder / _LOCK)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(
            f"cannot use the run directory {folder}: {reason}; choose another --out"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read_holder(file)
            raise ConfigError(f"{folder} is in use by {other}; choose another --out") from None
        holder = f"process {os.getpid()} on {socket.gethostname()}".encode()
        with disk_errors(folder / _LOCK, len(holder)):
            files.truncate(file, 0)
            files.write(file, holder)
        yield


def _read_holder(file: IO[bytes]) -> str:
    """Read who holds the lock; the holder writes its name shortly after locking."""
    for _ in range(_READS):
        time.sleep(_PAUSE)
        file.seek(0)
        if name := file.read(_LONGEST).decode(errors="replace").strip():
            return name.splitlines()[0]
    return "another process"


def write_weights(path: Path, weights: Tensors) -> str:
    """Write a model to a safetensors file, atomically, and return its SHA-256."""
    data = encode_weights(weights)
    replace_durably(path, data)
    return hashlib.sha256(data).hexdigest()


def encode_weights(weights: Tensors) -> bytes:
    """Encode a model as safetensors; equal weights give equal bytes."""
    copies = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
    data: bytes = save(copies, metadata={"format": "pt"})
    return data


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_hash(sha256: str, path: Path) -> bool:
    """Whether a file is there and has this SHA-256."""
    try:
        return hash_file(path) == sha256
    except OSError:
        return False


def next_attempt(folder: Path, committed: int = 0) -> int:
    """Number this start of the run, above every attempt that is known.

    If the count is lost, the client states and the attempt that was committed show the last one.
    """
    path = folder / _ATTEMPT
    last = max(committed, StateStore(folder / "clients").last_attempt())
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        counted = int(file.read(_LONGEST).decode("ascii"))
        if counted < _MOST_ATTEMPTS:
            last = max(last, counted)
    replace_durably(path, str(last + 1).encode())
    return last + 1


def refuse_obstacles(folder: Path) -> None:
    """Refuse a run that has a pipe, which would block, or a folder where a run has a file.

    So is one that has a file where a run has a folder. Anything in `clients/` that is no state is
    ignored; a folder inside a checkpoint damages only that checkpoint.
    """
    for name in _FOLDERS:
        problem = paths.find_problem(folder / name)
        if problem not in (paths.FOLDER, paths.ABSENT):
            problem = problem or "is a file"
            raise CheckpointError(f"{folder / name} {problem}, where a run has a folder")
    for name in _FILES:
        _refuse_obstacle(folder / name, paths.find_problem(folder / name))
    for pattern in ("checkpoints/*/*", "blobs/*", "personal/*"):
        for path in sorted(folder.glob(pattern)):
            problem = paths.find_problem(path)
            _refuse_obstacle(path, None if problem == paths.FOLDER else problem)


def _refuse_obstacle(path: Path, problem: str | None) -> None:
    if problem is None or problem == paths.ABSENT:
        return
    if problem.startswith(paths.UNREADABLE):  # it may be what the run needs
        raise CheckpointError(f"{path} {problem}")
    raise CheckpointError(f"{path} {problem}, where a run has a file; remove it")


def clean(folder: Path) -> None:
    """Remove incomplete files of a killed process; needs the lock, before workers are started."""
    places = ("", "clients/*/", "personal/", "checkpoints/best/", "checkpoints/*/", "blobs/")
    for place in places:
        for incomplete in folder.glob(f"{place}*.tmp"):
            if not incomplete.is_dir():
                with disk_errors(incomplete):
                    files.remove_file(incomplete)
    for leftover in [folder / "spool", folder / "evaluation", *folder.glob("checkpoints/*.tmp")]:
        if leftover.is_symlink():
            files.remove_file(leftover)
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
