"""Data sets: read by a source, checked, decoded once into a cache and memory-mapped from there.

Worker processes map the files that the main process has checked (`open_cached`), so that all of
them share one copy in memory.
"""

import contextlib
import errno
import functools
import hashlib
import inspect
import json
import mmap
import os
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Literal

import numpy as np

from coterie.core import files, registry
from coterie.core.errors import CheckpointError, ConfigError, DataError
from coterie.core.files import replace_durably, sync_folder, write_durably
from coterie.core.settings import Missing
from coterie.data import checks
from coterie.data.formats.locate import expand_path
from coterie.data.labels import ClassNames
from coterie.data.table import TableOptions

_FORMAT = 1
_SHORT = 16
_RACES = 5  # attempts where other processes write the same data set
_META = "meta.json"
_OF_TABLES = ("columns", "notes")
_NO_TABLE = TableOptions()
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


Kind = Literal["image", "signal", "table"]
AnyKind = Literal["auto", "image", "signal", "table"]  # `data.kind`
KINDS: dict[int, Kind] = {1: "table", 2: "signal", 3: "image"}  # by the axes of a sample


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The group (writer, hospital) of each sample, as an index into `names`.

    An empty `test` means that test samples have no groups. Test samples of group -1 belong to the
    server, which then tests on these alone.
    """

    train: np.ndarray
    test: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """The output of a source: images (N, C, H, W), signals (N, C, T) or vectors (N, F).

    With `classes`, labels are numbers 0..K-1, or -1 for a sample without one; `class_names` may
    name them. Otherwise labels are as a user gives them (`data.labels`), and are numbered later.
    `mean` and `std` are per channel; uint8 images are divided by 255 first. If both are empty there
    is no normalisation.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    groups: Groups | None = None
    class_names: ClassNames = ()
    columns: tuple[Mapping[str, Any], ...] = ()  # of a table: how each became inputs
    notes: tuple[str, ...] = ()  # what the user should know of how the data were read


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset(Raw):
    """A checked data set, memory-mapped read-only: x is uint8 or float32, y is int64, -1: no label.

    `fingerprint` is the SHA-256 of the description in meta.json and of the arrays, in their order.
    """

    name: str
    path: Path
    fingerprint: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W), (C, T) or (F,)."""
        return self.x_train.shape[1:]

    @property
    def kind(self) -> Kind:
        """What a sample is."""
        return KINDS[len(self.shape)]

    def describe(self) -> str:
        """Say what the samples were taken for, in a few words."""
        shape = " x ".join(map(str, self.shape))
        forms = {"image": f"images of {shape}", "signal": f"signals of {shape} (channels x time)"}
        table = f"tables with {len(self.columns) or shape} columns"
        if self.columns:
            table += f" ({shape} inputs)"
        form = forms.get(self.kind, table)
        classes = "1 class" if self.classes == 1 else f"{self.classes} classes"
        return f"{form}, {classes if self.classes else 'no labels'}"

    def without_normalisation(self) -> "Dataset":
        """Copy the data set with images left in [0, 1]."""
        return replace(self, mean=(), std=())


def names() -> tuple[str, ...]:
    """List the data sets: one per file of `sources`."""
    return registry.names("data/sources")


def default_cache() -> Path:
    """Return `$COTERIE_CACHE`, else `$XDG_CACHE_HOME/coterie`, else `~/.cache/coterie`."""
    if own := os.environ.get("COTERIE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "coterie"


def load(
    name: str,
    root: str = "",
    cache: Path | None = None,
    resize: int = 0,
    kind: AnyKind = "auto",
    table: TableOptions = _NO_TABLE,
) -> Dataset:
    """Load a data set by name; its files are decoded again only if one of them has changed.

    A source module has `read(root) -> Raw`, or `decode(root, resize, scratch) -> Raw` for image
    files, whose arrays may be memory-mapped from the folder `scratch`. Both may also take the
    `kind` of data that the user stated, or the options of a `table`. If it reads files it also has
    `files(root)`: their paths, sizes and times are the key of the decoded copy.
    """
    source = _import_source(name)
    checks.check_resize(name, resize, hasattr(source, "decode"))
    stated = _state_kind(name, source, kind) | _state_table(name, source, table)
    folder = (cache or default_cache()).absolute()
    pointer = None
    if hasattr(source, "files"):
        how = [asdict(v) if isinstance(v, TableOptions) else v for v in stated.values()]
        apart = [expand_path(table.test)] if table.test else []
        read = (*_list_files(source, root), *apart)
        pointer = _find_pointer(folder, name, (resize, *how), read)
    if pointer:
        # If the pointer is missing, or its folder is damaged, the data are only decoded again.
        with contextlib.suppress(OSError, ValueError, DataError):
            return open_cached(folder / pointer.read_text())
    if hasattr(source, "decode"):
        try:
            files.mkdir(folder)
            with TemporaryDirectory(dir=folder, prefix=".", ignore_cleanup_errors=True) as scratch:
                raw = source.decode(root, resize, Path(scratch), **stated)
                dataset = _cache(name, raw, folder, root)
        except OSError as error:
            raise _unwritable(folder, error) from error
    else:
        dataset = _cache(name, source.read(root, **stated), folder, root or name)
    if pointer:
        # The pointer only saves time, so a read-only cache that has the data will do.
        with contextlib.suppress(CheckpointError):
            replace_durably(pointer, dataset.path.name.encode())
    return dataset


def store(name: str, raw: Raw, cache: Path | None = None, what: str = "") -> Dataset:
    """Check the arrays, write them to the cache under a name, and memory-map them.

    Errors begin with `what`, or with the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"data.name={name!r} names a folder: use letters, digits, '-', '_', '.'")
    return _cache(name, raw, (cache or default_cache()).absolute(), what or name)


def open_cached(path: Path) -> Dataset:
    """Memory-map a data set from its cache folder; the error names a damaged file."""
    try:
        meta = json.loads((path / _META).read_bytes())
        arrays = {name: _map(path / f"{name}.npy", kind) for name, kind in meta["arrays"].items()}
        groups = None
        if "groups" in meta:
            train, test = (arrays.pop(name) for name in checks.GROUP_ARRAYS)
            groups = Groups(train, test, tuple(meta["groups"]))
        plain: dict[str, Any] = {key: meta[key] for key in ("name", "fingerprint", "classes")}
        mean, std = tuple(meta["mean"]), tuple(meta["std"])
        named = tuple(meta.get("class_names", range(plain["classes"])))
        plain |= {key: tuple(meta.get(key, ())) for key in _OF_TABLES}
        return Dataset(
            **(plain | arrays), path=path, mean=mean, std=std, groups=groups, class_names=named
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path / _META, error) from error


def _map(file: Path, described: Mapping[str, Any]) -> np.ndarray:
    """Map one array read-only, as a plain array: indexing a `memmap` is several times slower."""
    try:
        array = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(file, error) from error
    if list(array.shape) != described["shape"] or array.dtype.name != described["dtype"]:
        raise _damaged(file, f"it has {array.dtype} {array.shape}, unlike {_META}")
    return array


def _damaged(file: Path, reason: object) -> DataError:
    return DataError(
        f"{file}: the data cache is damaged ({reason}); delete {file.parent} and load it again"
    )


def _list_files(source: ModuleType, root: str) -> tuple[Path, ...]:
    """List the files of the data and of the decoding code: the copy is stale if one changes."""
    here = Path(__file__).parent
    shared = (*sorted(here.glob("formats/*.py")), *sorted(here.glob("*table*.py")))
    code = (Path(source.__file__ or ""), *shared, here / "encoding.py")
    try:
        return (*code, *source.files(root))
    except (OSError, ValueError) as error:
        raise DataError(f"{root} cannot be read ({error}); check data.root") from error


def settle_missing(name: str, table: TableOptions) -> Missing:
    """Say how a data set treats missing values; refuse another way than one of its own."""
    fixed: Missing = getattr(_import_source(name), "MISSING", table.missing)
    if table.missing not in (fixed, _NO_TABLE.missing):
        raise ConfigError(
            f"data.missing = {table.missing!r}, and the data set {name!r} is defined with "
            f"data.missing = {fixed!r}; leave it out"
        )
    return fixed


def _import_source(name: str) -> ModuleType:
    registry.check_known("data.name", name, names())
    return import_module(f"coterie.data.sources.{name.replace('-', '_')}")


def _state_kind(name: str, source: ModuleType, kind: AnyKind) -> dict[str, Any]:
    """Return the arguments that tell a source the kind of data: none if the user stated none."""
    if kind == "auto":
        return {}
    if "kind" in _parameters(source):
        return {"kind": kind}
    if kind == ("table" if "table" in _parameters(source) else "image"):
        return {}
    has = "tables" if "table" in _parameters(source) else "images"
    raise ConfigError(f"data.kind = {kind!r}, and the data set {name!r} has {has}")


def _state_table(name: str, source: ModuleType, table: TableOptions) -> dict[str, Any]:
    """Return the options of tables, for a source that reads some; else refuse stated ones."""
    if "table" in _parameters(source):
        if table.test and not getattr(source, "TEST_FILE", False):
            raise ConfigError(
                f"data.test = {table.test!r} is for data.name = 'table', and the data set {name!r} "
                "has test rows of its own; leave it out"
            )
        return {"table": replace(table, missing=settle_missing(name, table))}
    for key, value in asdict(table).items():
        if value != getattr(_NO_TABLE, key):
            raise ConfigError(
                f"data.{key} = {value!r} is for tables, and the data set {name!r} is none; "
                "leave it out"
            )
    return {}


def _parameters(source: ModuleType) -> Collection[str]:
    reader = getattr(source, "decode", None) or source.read
    return inspect.signature(reader).parameters if callable(reader) else ()


def _find_pointer(
    folder: Path, name: str, how: tuple[object, ...], read: Iterable[Path]
) -> Path | None:
    """Return the path of the file that points from these files to their cache folder.

    It is None if one of the files cannot be accessed.
    """
    key: list[object] = [_FORMAT, name, *how]
    # Resolving a path is slow, and a hundred thousand images share a few folders.
    resolve = functools.cache(Path.resolve)
    for file in read:
        try:
            status, parent = file.stat(), str(resolve(file.parent))
        except (OSError, ValueError):
            return None
        key.append([parent, file.name, status.st_size, status.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return folder / f"{name}-{digest[:_SHORT]}.index"


def _unwritable(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"the data cache {folder} cannot be written ({error.strerror or error}); "
        "set COTERIE_CACHE to a folder that can"
    )


def _cache(name: str, raw: Raw, folder: Path, origin: str) -> Dataset:
    """Check the arrays, write them unless the same contents are cached already, and map them."""
    arrays, names = checks.check(origin, raw)
    meta: dict[str, Any] = {"format": _FORMAT, "classes": len(names)}
    meta |= {"mean": list(raw.mean), "std": list(raw.std)}
    if raw.groups is not None:
        meta["groups"] = list(raw.groups.names)
    if names != tuple(range(len(names))):
        meta["class_names"] = list(names)
    meta |= {key: list(getattr(raw, key)) for key in _OF_TABLES if getattr(raw, key)}
    meta["arrays"] = {
        array: {"shape": list(values.shape), "dtype": values.dtype.name}
        for array, values in arrays.items()
    }
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for values in arrays.values():
        digest.update(np.ascontiguousarray(values).data)
    fingerprint = digest.hexdigest()
    path = folder / f"{name}-{fingerprint[:_SHORT]}"
    for _ in range(_RACES):
        with contextlib.suppress(DataError):
            return open_cached(path)
        try:
            _write(path, {**meta, "name": name, "fingerprint": fingerprint}, arrays)
        except OSError as error:
            raise _unwritable(folder, error) from error
    return open_cached(path)


def _write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a temporary folder, then rename it to `path`, so that it appears complete."""
    files.mkdir(path.parent)
    temporary = path.parent / f".{path.name}-{uuid.uuid4().hex}"
    try:
        files.mkdir(temporary, exist_ok=False)
        for name, values in arrays.items():
            _save(temporary / f"{name}.npy", values)
        write_durably(temporary / _META, json.dumps(meta, indent=2).encode())
        sync_folder(temporary)
        _move_into_place(temporary, path)
        sync_folder(path.parent)
    finally:
        files.remove_tree(temporary)


def _save(path: Path, values: np.ndarray) -> None:
    """Write one array; an array that is mapped from a scratch file is hard-linked instead."""
    # Only a whole memmap, not a view of one, has the mmap object itself as its base.
    base: object = values.base
    if isinstance(values, np.memmap) and isinstance(base, mmap.mmap):
        values.flush()
        # If the file system has no hard links, the file is copied.
        with contextlib.suppress(OSError):
            files.link(Path(str(values.filename)), path)
            return
    plain = np.ascontiguousarray(values)
    with files.open_to_write(path) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
        files.write(file, plain.data)
        files.sync(file.fileno())


def _move_into_place(temporary: Path, path: Path) -> None:
    """Rename to `path`, unless another process made a valid folder first; replace a damaged one."""
    for _ in range(_RACES):
        try:
            files.rename(temporary, path)
            return
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
        with contextlib.suppress(DataError):
            open_cached(path)
            return
        damaged = temporary.with_name(f"{temporary.name}-damaged")
        # Another process may have moved it in between; then the next rename succeeds.
        with contextlib.suppress(FileNotFoundError):
            files.rename(path, damaged)
        if damaged.is_dir():
            files.remove_tree(damaged)
        else:
            files.remove_file(damaged)
    raise OSError(f"{path} is being replaced by other processes repeatedly")
