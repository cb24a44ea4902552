"""Data sets: read by a source, checked, decoded once into a cache, and mapped read-only from it.

A worker process maps the files that the main process checked (`open_cached`), so that any number
of them share one copy in memory.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
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
class Groups:
    """Whose every sample is: numbers into `names`; an empty `test` says test samples are nobody's.

    Test samples of group -1 are the server's; where there are some, it tests on these alone.
    A natural partition (writers, photographers, hospitals) deals by them.
    """

    train: np.ndarray
    test: np.ndarray
    names: tuple[str, ...]


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
    groups: Groups | None = None


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
    groups: Groups | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W) or (F,)."""
        return self.x_train.shape[1:]

    def in_units(self) -> "Dataset":
        """The same data without normalisation: images in [0, 1]."""
        return replace(self, mean=(), std=())


def names() -> tuple[str, ...]:
    """The data sets there are: one per file of `sources`."""
    return registry.names("data/sources")


def default_cache() -> Path:
    """`$COTERIE_CACHE`, else `$XDG_CACHE_HOME/coterie`, else `~/.cache/coterie`."""
    if own := os.environ.get("COTERIE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "coterie"


def load(name: str, root: str = "", cache: Path | None = None, resize: int = 0) -> Dataset:
    """The data set of that name; its files are decoded again only if one of them has changed.

    A source module has `read(root) -> Raw`, or `decode(root, resize, scratch) -> Raw` if it reads
    images, which it may map from files of the folder `scratch`; and `files(root)` if what it reads
    lies in files: the key of the decoded copy is their paths, sizes and times.
    """
    checks.known("data.name", name, names())
    source = import_module(f"coterie.data.sources.{name.replace('-', '_')}")
    checks.check_resize(name, resize, hasattr(source, "decode"))
    folder = (cache or default_cache()).absolute()
    pointer = None
    if hasattr(source, "files"):
        pointer = _pointer(folder, name, resize, (*_code(source), *_files(source, root)))
    if pointer:
        # A pointer that is missing, or leads to a damaged folder, costs no more than a new decode.
        with contextlib.suppress(OSError, ValueError, DataError):
            return open_cached(folder / pointer.read_text())
    if hasattr(source, "decode"):
        with _scratch(folder, name) as scratch:
            dataset = _keep(name, source.decode(root, resize, scratch), folder, root)
    else:
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
        groups = None
        if "groups" in meta:
            train, test = (
                _map(path / f"{name}.npy", described[name]) for name in checks.GROUP_ARRAYS
            )
            groups = Groups(train, test, tuple(str(group) for group in meta["groups"]))
        return Dataset(
            name=str(meta["name"]),
            path=path,
            fingerprint=str(meta["fingerprint"]),
            classes=int(meta["classes"]),
            mean=tuple(float(value) for value in meta["mean"]),
            std=tuple(float(value) for value in meta["std"]),
            groups=groups,
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


def _files(source: ModuleType, root: str) -> tuple[Path, ...]:
    """The files that a source reads."""
    try:
        found: tuple[Path, ...] = source.files(root)
    except (OSError, ValueError) as error:
        raise DataError(f"{root} cannot be read ({error}); check data.root") from error
    return found


def _code(source: ModuleType) -> tuple[Path, ...]:
    """The code that decodes: when it changes, what it decoded before may be wrong."""
    formats = Path(__file__).parent / "formats"
    return (Path(source.__file__ or ""), *sorted(formats.glob("*.py")))


def _pointer(folder: Path, name: str, resize: int, files: Iterable[Path]) -> Path | None:
    """The file that notes the cache folder of these very files; None if one cannot be looked at."""
    key: list[object] = [_FORMAT, name, resize]
    # A hundred thousand images lie in a few folders, and to resolve a path takes many look-ups.
    folders: dict[Path, str] = {}
    for file in files:
        try:
            status = file.stat()
            if file.parent not in folders:
                folders[file.parent] = str(file.parent.resolve())
        except (OSError, ValueError):
            return None
        key.append([folders[file.parent], file.name, status.st_size, status.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return folder / f"{name}-{digest[:_SHORT]}.index"


@contextlib.contextmanager
def _scratch(folder: Path, name: str) -> Iterator[Path]:
    """A folder of the cache to decode images in; whatever is left in it goes at the end."""
    path = folder / f".{name}-{uuid.uuid4().hex}-decoding"
    try:
        path.mkdir(parents=True)
        yield path
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"the data cache {folder} cannot be written ({error.strerror or error}); "
        "set COTERIE_CACHE to a folder that can"
    )


def _keep(name: str, raw: Raw, folder: Path, origin: str) -> Dataset:
    """Check, write unless the same contents are there already, and map."""
    given = {array: np.asanyarray(getattr(raw, array)) for array in checks.ARRAYS}
    arrays, classes = checks.check(origin, given, raw.classes, raw.mean, raw.std)
    meta: dict[str, Any] = {
        "format": _FORMAT,
        "classes": classes,
        "mean": list(raw.mean),
        "std": list(raw.std),
    }
    if raw.groups is not None:
        whose = (raw.groups.train, raw.groups.test)
        arrays |= checks.check_groups(origin, arrays, whose, raw.groups.names)
        meta["groups"] = list(raw.groups.names)
    meta["arrays"] = {
        array: {"shape": list(values.shape), "dtype": values.dtype.name}
        for array, values in arrays.items()
    }
    fingerprint = _fingerprint(meta, arrays)
    path = folder / f"{name}-{fingerprint[:_SHORT]}"
    for _ in range(_RACES):
        with contextlib.suppress(DataError):
            return open_cached(path)
        try:
            _write(path, {**meta, "name": name, "fingerprint": fingerprint}, arrays)
        except OSError as error:
            raise _unwritable(folder, error) from error
    return open_cached(path)


def _fingerprint(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over what meta.json says and the bytes of the arrays in their order."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for values in arrays.values():
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a folder beside `path`, then rename it: nobody can see a half-written one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / f".{path.name}-{uuid.uuid4().hex}"
    try:
        beside.mkdir()
        for name, values in arrays.items():
            _save(beside / f"{name}.npy", values)
        with (beside / _META).open("w") as text:
            json.dump(meta, text, indent=2)
            text.flush()
            os.fsync(text.fileno())
        _sync(beside)
        _put(beside, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _save(path: Path, values: np.ndarray) -> None:
    """Write one array; one that was decoded into a file of the cache is there already."""
    # Only a whole map, not a view of one, has the mmap object itself for its base.
    base: object = values.base
    if isinstance(values, np.memmap) and isinstance(base, mmap.mmap):
        values.flush()
        # Where the disk knows no second name for a file, the file is copied.
        with contextlib.suppress(OSError):
            path.hardlink_to(str(values.filename))
            return
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(values), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


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
