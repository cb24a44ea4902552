"""Finding data files and folders, and the error if they are missing."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from coterie.core import paths
from coterie.core.errors import DataError


def expand_path(root: str) -> Path:
    """Return an absolute path with `~` expanded; one that no file can have is refused."""
    try:
        path = Path(root).expanduser().absolute()
    except RuntimeError:  # `~name` of a user who does not exist
        path = Path(root).absolute()
    if paths.find_problem(path) == paths.TOO_LONG:
        raise DataError(f"{path} {paths.TOO_LONG}; check data.root")
    return path


def check_file(path: Path) -> None:
    """Refuse what is no regular file, before it is opened: a pipe would be waited for."""
    if problem := paths.find_problem(path):
        raise DataError(f"{path} {problem}; replace or remove it")


def resolve_root(root: str) -> Path:
    """Return the folder or file that `data.root` names, else `$COTERIE_DATA`, else `data`."""
    return expand_path(root or os.environ.get("COTERIE_DATA") or "data")


def require_own(name: str, root: str, kind: str = "folder", example: str = "FOLDER") -> Path:
    """Return the folder or file of the user's own data, which has no default."""
    remedy = f"give one with data.root={example}"
    if not root:
        raise DataError(f"data.root is empty, but the data set {name!r} is a {kind}; {remedy}")
    path = expand_path(root)
    problem = paths.find_problem(path)
    if problem == (paths.FOLDER if kind == "folder" else None):
        return path
    if problem in (None, paths.FOLDER):
        problem = f"is not a {kind}"
    raise DataError(f"{path} {problem}; {remedy}")


def describe_missing(name: str, searched: Iterable[Path], files: str, also: str = "") -> DataError:
    """Make the error that lists every path that was searched, and says how to get the data."""
    listed = ", ".join(str(path) for path in dict.fromkeys(searched))
    return DataError(
        f"the data set {name!r} was not found; looked at {listed}; get it with "
        f"`coterie download {name} --root DIR`, or put {files} there, then set data.root=DIR{also}"
    )


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort distinct names: as numbers if all of them are numbers, else as text."""
    distinct = sorted(set(names))
    if all(name.isascii() and name.isdigit() for name in distinct):
        distinct.sort(key=int)
    return distinct


def list_files_below(folder: Path, endings: Sequence[str]) -> list[Path]:
    """List the files below a folder with one of these endings, sorted, without hidden ones."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (name for name in sorted(names) if not name.startswith("."))
        files += [Path(parent, name) for name in visible if name.lower().endswith(tuple(endings))]
    return files
