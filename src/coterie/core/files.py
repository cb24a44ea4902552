"""Writing files so that they are whole or absent."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import CheckpointError


@contextmanager
def disk_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn an operating system error into one line that names the path and the bytes needed."""
    try:
        yield
    except OSError as error:
        size = f" ({needed:,} bytes needed)" if needed and error.errno == errno.ENOSPC else ""
        where = error.filename or path
        raise CheckpointError(
            f"cannot write {where}: {error.strerror or error}{size}; what was committed before "
            "is intact: make room or mend the disk, then use --resume"
        ) from error


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and have it on the disk, its name not yet."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Have a folder, and its name on the disk."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)


def replace_durably(path: Path, data: bytes) -> None:
    """Put a whole file in the place of the old one, or leave the old one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with disk_errors(path, len(data)):
        make_folder(path.parent)
        try:
            write_durably(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
