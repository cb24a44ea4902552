"""Files that only their owner may read."""

import os
import stat
from pathlib import Path

from coterie.core.errors import ConfigError


def write_private(file: Path, content: bytes) -> None:
    """Write a new file with mode 600 from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(stream.fileno(), 0o600)  # a file that was there keeps its mode otherwise
        stream.write(content)


def check_private(file: Path, what: str) -> None:
    """Refuse a secret that is missing or that other users of the machine can read."""
    if not file.is_file():
        raise ConfigError(f"there is no {what} {file}")
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"the {what} {file} can be read by others; run 'chmod 600 {file}'")
