"""Second copies of files on which several checkpoints rely: damage of one is mended by the other.

    blobs/SHA256            blobs/SHA256.copy

A copy is not synced to disk: after a power failure it may be damaged, and the file itself is not.
"""

import os
from collections.abc import Callable
from pathlib import Path

from coterie.core import files
from coterie.core.files import disk_errors, sync_folder

SUFFIX = ".copy"
_CHUNK = 2**20  # bytes

IsIntact = Callable[[Path], bool]


def find_copy(path: Path) -> Path:
    """Return where the second copy of a file is."""
    return path.with_name(path.name + SUFFIX)


def make_copy(path: Path, renew: bool = False) -> None:
    """Make the second copy of a file, unless there is one that need not be renewed."""
    if renew or not find_copy(path).exists():
        _copy(path, find_copy(path))


def find_intact(path: Path, is_intact: IsIntact) -> Path | None:
    """Return a file, or its second copy if the file is damaged; None if both are."""
    return next((one for one in (path, find_copy(path)) if is_intact(one)), None)


def mend(path: Path, is_intact: IsIntact) -> str | None:
    """Replace the damaged one of a file and its copy by the other; say so if it was the file."""
    copy = find_copy(path)
    if is_intact(path):
        if copy.exists() and not is_intact(copy):
            _copy(path, copy)
        return None
    if not is_intact(copy):
        return None
    _copy(copy, path)
    with disk_errors(path):
        with path.open("rb") as file:
            files.sync(file.fileno())
        sync_folder(path.parent)
    return f"{path} was missing or damaged, and is restored from its copy"


def remove(path: Path) -> None:
    """Remove a file and its second copy; the copy first, so that none is left alone."""
    with disk_errors(path):
        if find_copy(path).exists():
            files.remove_file(find_copy(path))
        files.remove_file(path)


def _copy(source: Path, target: Path) -> None:
    """Copy the bytes of a file, however large, atomically."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with disk_errors(target, source.stat().st_size):
        try:
            with source.open("rb") as read, files.open_to_write(temporary) as written:
                while chunk := read.read(_CHUNK):
                    files.write(written, chunk)
            if target.is_dir() and not target.is_symlink():
                files.remove_tree(target)
            files.rename(temporary, target)
        except BaseException:
            files.remove_file(temporary)
            raise
