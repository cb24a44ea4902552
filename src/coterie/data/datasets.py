"""Data sets: read by a source, checked, decoded once into a cache, and mapped read-only from it.

A worker process maps the files that the main process checked (`open_cached`), so that any number
of them share one copy in memory.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import registry
from coterie.core.errors import ConfigError, DataError
from coterie.data import checks

_FORMAT = 1
_SHORT = 16
_RACES = 5
_META = "meta.json"
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """What a source reads: images (N, C, H, W) or vectors (N, F), with integer labels 0..K-1.

    `classes` 0 counts them from the training labels. `mean` and `std` are per channel, applied
    after division by 255 to uint8 images and as they are to floats; empty is no normalisation.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A checked data set, mapped read-only: x uint8 or float32, y int64.

    `mean` and `std` mean what they do in `Raw`; `fingerprint` is the SHA-256 of the contents.
    """

    name: str
    path: Path
    fingerprint: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W) or (F,)."""
        return self.x_train.shape[1:]


def names() -> tuple[str, ...]:
    """The data sets there are: one per file of `sources`."""
    return registry.names("data/sources")


def default_cache() -> Path:
    """`$COTERIE_CACHE`, else `$XDG_CACHE_HOME/coterie`, else `~/.cache/coterie`."""
    if own := os.environ.get("COTERIE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "coterie"


def load(name: str, root: str = "", cache: Path | None = None) -> Dataset:
    """The data set of that name; its files are decoded again only if one of them has changed.

    A source module has `read(root) -> Raw`, and `files(root) -> tuple[Path, ...]` if what it
    reads lies in files; the key of the decoded copy is their paths, sizes and times.
    """
    checks.known("data.name", name, names())
    source = import_module(f"coterie.data.sources.{name.replace('-', '_')}")
    folder = (cache or default_cache()).absolute()
    pointer = None
    if hasattr(source, "files"):
        pointer = _pointer(folder, name, (Path(source.__file__ or ""), *source.files(root)))
    if pointer:
        # A pointer that is missing, or leads to a damaged folder, costs no more than a new decode.
        with contextlib.suppress(OSError, ValueError, DataError):
            return open_cached(folder / pointer.read_text())
    dataset = _keep(name, source.read(root), folder, root or name)
    if pointer:
        # It only saves time: a cache that holds the data but is read-only is good enough.
        with contextlib.suppress(OSError):
            beside = folder / f".{pointer.name}-{uuid.uuid4().hex}"
            beside.write_text(dataset.path.name)
            beside.replace(pointer)
    return dataset


def store(name: str, raw: Raw, cache: Path | None = None) -> Dataset:
    """Check the arrays, write them to the cache under that name, and map them."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"data.name={name!r} names a folder: use letters, digits, '-', '_', '.'")
    return _keep(name, raw, (cache or default_cache()).absolute(), name)


def open_cached(path: Path) -> Dataset:
    """Map the data set of a cache folder; a file that is missing, cut or altered is named."""
    try:
        meta = json.loads((path / _META).read_bytes())
        described = meta["arrays"]
        arrays = {name: _map(path / f"{name}.npy", described[name]) for name in checks.ARRAYS}
        return Dataset(
            name=str(meta["name"]),
            path=path,
            fingerprint=str(meta["fingerprint"]),
            classes=int(meta["classes"]),
            mean=tuple(float(value) for value in meta["mean"]),
            std=tuple(float(value) for value in meta["std"]),
            **arrays,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path / _META, error) from error


def _map(file: Path, described: Mapping[str, Any]) -> np.ndarray:
    """Map one array read-only, as a plain view: indexing a memmap is several times slower."""
    try:
        array = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(file, error) from error
    if list(array.shape) != described["shape"] or array.dtype.name != described["dtype"]:
        raise _damaged(file, f"it holds {array.dtype} {array.shape}, not what {_META} says")
    return array


def _damaged(file: Path, reason: object) -> DataError:
    return DataError(
        f"{file}: the data cache is damaged ({reason}); delete {file.parent} and load it again"
    )


def _pointer(folder: Path, name: str, files: Iterable[Path]) -> Path | None:
    """The file that notes the cache folder of these very files; None if one cannot be looked at."""
    key: list[object] = [_FORMAT, name]
    for file in files:
        try:
            status = file.stat()
        except (OSError, ValueError):
            return None
        key.append([str(file.resolve()), status.st_size, status.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return folder / f"{name}-{digest[:_SHORT]}.index"


def _keep(name: str, raw: Raw, folder: Path, origin: str) -> Dataset:
    """Check, write unless the same contents are there already, and map."""
    given = {array: np.asarray(getattr(raw, array)) for array in checks.ARRAYS}
    arrays, classes = checks.check(origin, given, raw.classes, raw.mean, raw.std)
    meta = {
        "format": _FORMAT,
        "classes": classes,
        "mean": list(raw.mean),
        "std": list(raw.std),
        "arrays": {
            array: {"shape": list(values.shape), "dtype": values.dtype.name}
            for array, values in arrays.items()
        },
    }
    fingerprint = _fingerprint(meta, arrays)
    path = folder / f"{name}-{fingerprint[:_SHORT]}"
    for _ in range(_RACES):
        with contextlib.suppress(DataError):
            return open_cached(path)
        try:
            _write(path, {**meta, "name": name, "fingerprint": fingerprint}, arrays)
        except OSError as error:
            raise DataError(
                f"the data cache {folder} cannot be written ({error.strerror or error}); "
                "set COTERIE_CACHE to a folder that can"
            ) from error
    return open_cached(path)


def _fingerprint(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over what meta.json says and the bytes of the arrays in their order."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for array in checks.ARRAYS:
        digest.update(np.ascontiguousarray(arrays[array]).data)
    return digest.hexdigest()


def _write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a folder beside `path`, then rename it: nobody can see a half-written one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / f".{path.name}-{uuid.uuid4().hex}"
    try:
        beside.mkdir()
        for name, values in arrays.items():
            with (beside / f"{name}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(values), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        with (beside / _META).open("w") as text:
            json.dump(meta, text, indent=2)
            text.flush()
            os.fsync(text.fileno())
        _sync(beside)
        _put(beside, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _put(beside: Path, path: Path) -> None:
    """Rename to `path`; a good folder that came first stays, a damaged one makes way."""
    for _ in range(_RACES):
        try:
            beside.rename(path)
            return
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
        with contextlib.suppress(DataError):
            open_cached(path)
            return
        away = beside.with_name(f"{beside.name}-damaged")
        # Another process may have moved it away in between; then the next rename succeeds.
        with contextlib.suppress(FileNotFoundError):
            path.rename(away)
        if away.is_dir():
            shutil.rmtree(away)
        else:
            away.unlink(missing_ok=True)
    raise OSError(f"{path} is being replaced by other processes again and again")


def _sync(folder: Path) -> None:
    """Make the names in a folder last through a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
