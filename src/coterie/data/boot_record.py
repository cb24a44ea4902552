"""Hashes of files that are computed once per boot, and remembered in a record until the next.

A record keeps a hash with the state of the files: device, inode, size and times of each. A file
that is written, replaced or restored has another state, also where its modification time is set
back. A bit that changes on the disk itself is found after the next boot. This guards against
accidents: whoever may write the cache may write a record too.
"""

import contextlib
import errno
import hashlib
import json
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from coterie.core.errors import CheckpointError
from coterie.core.files import replace_durably

_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Of a file that was written just before it was hashed, a later write could have the same times.
_SETTLED = 3 * 10**9  # nanoseconds; file systems count times in steps of up to two seconds


def hash_once(record: Path, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return the hash that the record has of these files in this boot, else compute it.

    The record is written if the files are settled and did not change meanwhile. Where it cannot be,
    or the system does not number its boots, every call computes.
    """
    boot, now = _read_boot(), time.time_ns()
    state, newest = _read_state(files)
    if boot and (known := _read_record(record, boot, state)):
        return known
    digest = compute()
    if boot and newest < now - _SETTLED and _read_state(files)[0] == state:
        values = [boot, state, digest]
        with contextlib.suppress(CheckpointError):  # it only saves time
            replace_durably(record, json.dumps([*values, _check(values)]).encode())
    return digest


def hash_files(files: Iterable[Path]) -> str:
    """Hash the contents of files, in their order."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _read_record(record: Path, boot: str, state: str) -> str:
    """Return the hash in a record that is whole, of this boot and of this state; else nothing."""
    try:
        *values, check = json.loads(record.read_bytes())
        known = values == [boot, state, values[-1]] and check == _check(values)
    except (OSError, ValueError, TypeError, IndexError):
        return ""
    return str(values[-1]) if known else ""


def _check(values: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _read_boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _read_state(files: Iterable[Path]) -> tuple[str, int]:
    """Return a hash of the state of all files, and the time of the newest change."""
    digest, newest = hashlib.sha256(), 0
    for path in files:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device has no end
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        times = (status.st_mtime_ns, status.st_ctime_ns)
        digest.update(
            repr((str(path), status.st_dev, status.st_ino, status.st_size, times)).encode()
        )
        newest = max(newest, *times)
    return digest.hexdigest(), newest
