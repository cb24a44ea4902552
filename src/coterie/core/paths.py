"""What a path of the user names, asked before it is opened: opening a pipe may never end."""

import errno
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a pipe"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
)
ABSENT = "does not exist"


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


def _explain(error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return "is too long for a path"
    return f"cannot be read ({error.strerror})"
