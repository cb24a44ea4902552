"""The operations that change files, and durable, atomic writes made of them.

After a crash a file is complete, old or absent. The first half is the one thin layer through which
core, data, engine and experiment change files: it is called as `files.rename(...)`, by the module's
name, so that tests can make each operation fail.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from coterie.core.errors import CheckpointError

RESUME = (
    "; what was committed before is intact: free some space or repair the disk, then use --resume"
)
_CHUNK = 2**20  # bytes


def open_to_write(path: Path, mode: str = "wb", follow: bool = True) -> IO[bytes]:
    """Open a file to write bytes: a new one, or with `ab`, `a+b` or `r+b` an existing one.

    Without `follow` a symbolic link is an error (ELOOP): the file behind it may be anybody's.
    """
    also = 0 if follow else os.O_NOFOLLOW
    file: IO[Any] = open(  # noqa: SIM115 - the caller closes it
        path, mode, opener=lambda name, flags: os.open(name, flags | also, 0o666)
    )
    return file


def write(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all bytes and pass them to the system, so that a full disk is noticed here."""
    file.write(data)
    file.flush()


def truncate(file: IO[bytes], size: int) -> None:
    """Cut a file off after its first `size` bytes."""
    file.truncate(size)


def sync(descriptor: int) -> None:
    """Wait until the disk has what was written to a file, or the entries of a folder."""
    os.fsync(descriptor)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder; a file, or an empty folder, of the new name is replaced."""
    old.replace(new)


def link(old: Path, new: Path) -> None:
    """Give a file a second name, if the file system has hard links."""
    new.hardlink_to(old)


def allocate(file: IO[bytes], size: int) -> None:
    """Give a file its size, with the space on disk if the system can promise that."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def make_scratch(folder: Path) -> Path:
    """Create a folder with a name of its own, which begins with a dot, below another one."""
    return Path(tempfile.mkdtemp(dir=folder, prefix="."))


def mkdir(path: Path, exist_ok: bool = True) -> None:
    """Create a folder and those above it."""
    path.mkdir(parents=True, exist_ok=exist_ok)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder and what is in it, as far as possible."""
    shutil.rmtree(path, ignore_errors=True)


def read(path: Path) -> bytes:
    """Read a whole file that a run relies on; an error is one line with the path and the remedy."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise explain_read(path, error) from error


def explain_read(path: Path, error: OSError) -> CheckpointError:
    """Say that a file cannot be read; the error of a disk that fails does not name the file."""
    return CheckpointError(f"cannot read {path}: {error.strerror or error}{RESUME}")


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Have a folder for temporary files, which is removed in the end, as far as possible."""
    path = make_scratch(folder)
    try:
        yield path
    finally:
        remove_tree(path)


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
    with open_to_write(path) as file:
        write(file, data)
        sync(file.fileno())


def copy_durably(source: Path, target: Path, size: int) -> None:
    """Copy the first bytes of a file and sync them; a long file is never in memory as a whole."""
    with open_to_write(target) as file:
        for chunk in _read_chunks(source, size):
            write(file, chunk)
        sync(file.fileno())


def _read_chunks(path: Path, size: int) -> Iterator[bytes]:
    """Read the first bytes of a file, some at a time."""
    try:
        with path.open("rb") as file:
            while size > 0 and (chunk := file.read(min(size, _CHUNK))):
                yield chunk
                size -= len(chunk)
    except OSError as error:
        raise explain_read(path, error) from error


def sync_folder(path: Path) -> None:
    """Sync the directory entries of a folder, or the contents of a file, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder unless it exists, and sync its directory entry."""
    if not path.is_dir():
        mkdir(path)
        sync_folder(path.parent)


def replace_durably(path: Path, data: bytes, remedy: str = RESUME) -> None:
    """Write a file atomically: on an error the old file, if any, stays as it was."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with disk_errors(path, len(data), remedy):
        make_folder(path.parent)
        try:
            write_durably(temporary, data)
            rename(temporary, path)
        finally:
            remove_file(temporary)
        sync_folder(path.parent)
