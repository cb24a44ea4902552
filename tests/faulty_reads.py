"""Counts reads of files, and lets one of them fail as on a disk with a bad sector."""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np


class _Unreadable(io.FileIO):
    """A file that can be opened, and whose every read is an error without a path."""

    def _fail(self, *_: Any) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    read = readall = readinto = _fail


@dataclass
class BadSector:
    """Lets the n-th read below some folders fail, in whichever way a file is read."""

    victim: int
    folders: tuple[Path, ...]
    seen: int = 0
    path: str = ""  # whose read failed
    every: list[str] = field(default_factory=list)  # all paths that were read, in order

    def strikes(self, path: Any) -> bool:
        """Count a read; whether it is the one that fails."""
        if not any(Path(path).is_relative_to(folder) for folder in self.folders):
            return False
        self.every.append(str(path))
        self.seen += 1
        if self.seen != self.victim + 1:
            return False
        self.path = str(path)
        return True


@contextmanager
def reading(fault: BadSector) -> Iterator[BadSector]:
    """Read files with a fault, in this process, for a time."""
    open_path, load = Path.open, np.load

    def open_faulty(path: Path, mode: str = "r", *options: Any, **more: Any) -> Any:
        if set(mode) & set("wax+") or not path.is_file() or not fault.strikes(path):
            return open_path(path, mode, *options, **more)
        file = io.BufferedReader(_Unreadable(path))
        return file if "b" in mode else io.TextIOWrapper(file)

    def load_faulty(file: Any, *options: Any, **more: Any) -> Any:
        if isinstance(file, str | Path) and fault.strikes(file):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return load(file, *options, **more)

    Path.open, np.load = open_faulty, load_faulty  # type: ignore[method-assign]
    try:
        yield fault
    finally:
        Path.open, np.load = open_path, load  # type: ignore[method-assign]
