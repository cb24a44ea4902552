"""Files of a run directory that are changed in place: the lock, and the lines of the rounds."""

import errno
from pathlib import Path
from typing import IO

from coterie.core import files
from coterie.core.errors import CheckpointError


def open_in_place(path: Path) -> IO[bytes]:
    """Open a file to read it and to append; refuse a link, whose target may be anything."""
    try:
        return files.open_to_write(path, "a+b", follow=False)
    except OSError as error:
        if error.errno != errno.ELOOP or not path.is_symlink():
            raise
        raise CheckpointError(
            f"{path} is a symbolic link, and the file behind it would be overwritten; remove the "
            "link, or choose another --out"
        ) from error
