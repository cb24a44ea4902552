"""Files of keys and certificates; private ones can be read by their owner only."""

import os
import stat
from pathlib import Path

from coterie.core.errors import ConfigError
from coterie.core.files import disk_errors

_REMEDY = "; repeat the command when it can be written"


def write_private(file: Path, content: bytes) -> None:
    """Write a new file with mode 600 from its first byte on."""
    with disk_errors(file, len(content), _REMEDY):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)  # a file that was there keeps its mode otherwise
            stream.write(content)


def make_folder(folder: Path) -> None:
    """Make the folder of such files, and those above it."""
    with disk_errors(folder, remedy=_REMEDY):
        folder.mkdir(parents=True, exist_ok=True)


def write_public(file: Path, content: bytes) -> None:
    """Write a file that others may read."""
    with disk_errors(file, len(content), _REMEDY):
        file.write_bytes(content)


def check_private(file: Path, what: str) -> None:
    """Refuse a secret that is missing or that other users of the machine can read."""
    if not file.is_file():
        raise ConfigError(f"there is no {what} {file}")
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"the {what} {file} can be read by others; run 'chmod 600 {file}'")
