"""Where data is looked for, and what is said when it is not there."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from coterie.core.errors import DataError


def expand(root: str) -> Path:
    """An absolute path with `~` expanded."""
    try:
        return Path(root).expanduser().absolute()
    except RuntimeError:  # `~name` of a user who does not exist
        return Path(root).absolute()


def default_root() -> Path:
    """`$COTERIE_DATA`, else the folder `data` of the working directory."""
    return expand(os.environ.get("COTERIE_DATA") or "data")


def base(root: str) -> Path:
    """The folder or file that `data.root` names; empty is the default root."""
    return expand(root) if root else default_root()


def given(name: str, root: str) -> Path:
    """The folder of the user's own data, which has no default."""
    if not root:
        raise DataError(
            f"data.root is empty, but the data set {name!r} is a folder; give one with "
            "data.root=FOLDER"
        )
    folder = expand(root)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one with data.root=FOLDER")
    return folder


def missing(name: str, looked: Iterable[Path], files: str, also: str = "") -> DataError:
    """One line with every path that was looked at and how to get the data."""
    paths = ", ".join(str(path) for path in dict.fromkeys(looked))
    return DataError(
        f"the data set {name!r} was not found; looked at {paths}; get it with "
        f"`coterie download {name} --root DIR`, or put {files} there, then set data.root=DIR{also}"
    )


def ordered(names: Iterable[str]) -> list[str]:
    """Distinct names in order: as numbers if all of them are numbers, else as text."""
    found = sorted(set(names))
    if all(name.isascii() and name.isdigit() for name in found):
        found.sort(key=int)
    return found


def below(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The files under a folder with one of these endings (lower case), sorted; none is hidden."""
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        wanted = (
            name
            for name in names
            if not name.startswith(".") and name.lower().endswith(tuple(endings))
        )
        found += [Path(where, name) for name in sorted(wanted)]
    return found
