"""Copies of a cached data set on machines that cannot read the cache of the main one."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from coterie.core import files
from coterie.core.errors import DataError
from coterie.data.datasets import default_cache, open_cached, open_verified, store


def read_files(path: Path) -> dict[str, np.ndarray]:
    """Map the files of a cached data set, as bytes that can be sent."""
    return {file.name: np.memmap(file, np.uint8, mode="r") for file in sorted(path.iterdir())}


def find_copy(path: Path, fingerprint: str) -> Path | None:
    """Find a data set that another machine has at `path`: there, or in this machine's cache."""
    for folder in (path, default_cache().absolute() / path.name):
        with suppress(DataError):  # it is not there, or damaged: it is sent then
            if open_verified(folder).fingerprint == fingerprint:
                return folder
    return None


def write_copy(contents: Mapping[str, np.ndarray], fingerprint: str) -> Path:
    """Write a data set that was sent to this machine's cache; its fingerprint is computed anew."""
    cache = default_cache().absolute()
    try:
        files.mkdir(cache)
        with files.scratch(cache) as scratch:
            for name, data in contents.items():
                with files.open_to_write(scratch / Path(name).name) as file:
                    files.write(file, data.data)
            sent = open_cached(scratch)
            copy = store(sent.name, sent, cache)
    except OSError as error:
        raise DataError(
            f"the data cache {cache} cannot be written ({error.strerror or error}); "
            "set COTERIE_CACHE on this node to a folder that can"
        ) from error
    if copy.fingerprint != fingerprint:
        raise DataError(f"the data set {sent.name!r} was damaged on its way to this node")
    return copy.path
