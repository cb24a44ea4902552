"""What a path of the user names, asked before it is opened: opening a pipe may never end."""

import errno
import os
import stat
from pathlib import Path

ABSENT, FOLDER, TOO_LONG = "does not exist", "is a folder", "is too long for a path"
UNREADABLE = "cannot be read"  # and why
_LONGEST_NAME, _LONGEST_PATH = 255, 4095  # bytes, on the file systems of Linux
_KINDS = (
    (stat.S_ISDIR, FOLDER),
    (stat.S_ISFIFO, "is a pipe"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
)


def find_problem(path: Path) -> str | None:
    """Say why a path is no file that can be read, as in "is a pipe"; None if it is one."""
    try:
        mode = path.stat().st_mode
    except ValueError:  # a NUL in it
        return ABSENT
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError as error:
        return _explain(error)
    if stat.S_ISREG(mode):
        return None
    return next((text for is_kind, text in _KINDS if is_kind(mode)), "is no file")


def is_file(path: Path) -> bool:
    """Whether this is a regular file; a path that cannot be one, such as a long text, is not."""
    return find_problem(path) is None


def find_unwritable(folder: Path, room: int) -> str | None:
    """Say why a folder cannot be made, or have files with names of `room` bytes; None if it can.

    Its path must be text, because it is written to files.
    """
    path = folder.absolute()
    if "\0" in str(path):
        return "has a NUL in its path"
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "has a path that is no UTF-8"
    longest = max(len(os.fsencode(name)) for name in path.parts)
    if longest > _LONGEST_NAME or len(os.fsencode(path)) + room > _LONGEST_PATH:
        return TOO_LONG
    above = next(p for p in (path, *path.parents) if os.path.lexists(p))
    problem = find_problem(above)
    if problem == FOLDER:
        return None
    return f"cannot be made: {above} {problem or 'is a file'}"


def _explain(error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return TOO_LONG
    return f"{UNREADABLE} ({error.strerror})"
