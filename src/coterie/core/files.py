"""Durable, atomic file writes: after a crash a file is complete, old or absent."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import CheckpointError

RESUME = (
    "; what was committed before is intact: free some space or repair the disk, then use --resume"
)


@contextmanager
def disk_errors(path: Path, needed: int = 0, remedy: str = RESUME) -> Iterator[None]:
    """Turn an `OSError` into one line with the path, the bytes needed and the remedy."""
    try:
        yield
    except OSError as error:
        size = f" ({needed:,} bytes needed)" if needed and error.errno == errno.ENOSPC else ""
        where = error.filename or path
        reason = f"{error.strerror or error}{size}"
        raise CheckpointError(f"cannot write {where}: {reason}{remedy}") from error


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and sync its contents; its directory entry is not synced yet."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Sync the directory entries of a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder unless it exists, and sync its directory entry."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)


def replace_durably(path: Path, data: bytes, remedy: str = RESUME) -> None:
    """Write a file atomically: on an error the old file, if any, stays as it was."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with disk_errors(path, len(data), remedy):
        make_folder(path.parent)
        try:
            write_durably(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
