"""Data sets: read by a source, checked, decoded once into a cache and memory-mapped from there.

Worker processes map the files that the main process has verified (`open_cached`), so that all of
them share one copy in memory.
"""

import contextlib
import errno
import functools
import hashlib
import inspect
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from coterie.core import files, registry
from coterie.core.errors import CheckpointError, ConfigError, DataError
from coterie.core.files import replace_durably
from coterie.core.formatting import quote
from coterie.core.settings import Missing
from coterie.data import cache_folder, checks
from coterie.data.boot_record import hash_files, hash_once
from coterie.data.cache_folder import Damaged
from coterie.data.formats.locate import expand_path
from coterie.data.labels import ClassNames
from coterie.data.table import TableOptions

_FORMAT = 1
_SHORT = 16
_OF_TABLES = ("columns", "notes")
_NO_TABLE = TableOptions()

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
    `files(root)`: their paths and contents are the key of the decoded copy.
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
        with contextlib.suppress(OSError, ValueError, Damaged):
            return open_verified(folder / pointer.read_text())
    if hasattr(source, "decode"):
        try:
            files.mkdir(folder)
            with files.scratch(folder) as scratch:
                raw = source.decode(root, resize, scratch, **stated)
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


def is_installed(name: str) -> bool:
    """Whether a data set comes with Coterie, so that no folder of files has an effect."""
    return name in names() and bool(getattr(_import_source(name), "INSTALLED", False))


def check_root(name: str, root: str) -> None:
    """Refuse a folder of files for a data set that is installed: it would have no effect."""
    if root and is_installed(name):
        raise ConfigError(
            f"data.root = {quote(root)} has no effect: the data set {name!r} is installed with "
            "Coterie; leave it out, or say what the files are with data.name"
        )


def store(name: str, raw: Raw, cache: Path | None = None, what: str = "") -> Dataset:
    """Check the arrays, write them to the cache under a name, and memory-map them.

    Errors begin with `what`, or with the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"data.name={name!r} names a folder: use letters, digits, '-', '_', '.'")
    return _cache(name, raw, (cache or default_cache()).absolute(), what or name)


def open_verified(path: Path) -> Dataset:
    """Memory-map a data set whose every byte is as it was written; `Damaged` if it is not."""
    cache_folder.verify(path)
    return open_cached(path)


def open_cached(path: Path) -> Dataset:
    """Memory-map a data set from its cache folder; the error names a damaged file.

    Shapes and dtypes are checked, the contents are not: this process, or the one that started it,
    has used `open_verified` before.
    """
    meta, arrays = cache_folder.map_folder(path)
    try:
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise cache_folder.damaged(path / cache_folder.META, error) from error


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
    folder: Path, name: str, how: tuple[object, ...], read: Sequence[Path]
) -> Path | None:
    """Return the path of the file that points from these files to their cache folder.

    It is None if one of the files cannot be read.
    """
    # Resolving a path is slow, and a hundred thousand images share a few folders.
    resolve = functools.cache(Path.resolve)
    try:
        places = [[str(resolve(file.parent)), file.name] for file in read]
        record = folder / f"{name}-{_shorten([_FORMAT, name, places])}.sources"
        contents = hash_once(record, read, lambda: hash_files(read))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and (why := cache_folder.explain_handles(error)):
            raise DataError(f"{error.filename} cannot be opened: {why}") from error
        return None
    return folder / f"{name}-{_shorten([_FORMAT, name, *how, places, contents])}.index"


def _shorten(key: list[object]) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:_SHORT]


def _unwritable(folder: Path, error: OSError, needed: int = 0) -> DataError:
    if why := cache_folder.explain_handles(error):
        return DataError(f"the data cache {folder} cannot be written: {why}")
    size = f", {needed:,} bytes needed" if needed and error.errno == errno.ENOSPC else ""
    return DataError(
        f"the data cache {folder} cannot be written ({error.strerror or error}{size}); "
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
    fingerprint = cache_folder.hash_contents(meta, arrays)
    path = folder / cache_folder.name_folder(name, fingerprint)
    notes: tuple[str, ...] = ()
    for _ in range(cache_folder.RACES):
        there = path.is_dir()
        try:
            dataset = open_verified(path)
            return replace(dataset, notes=(*dataset.notes, *notes))
        except Damaged:
            if there:
                notes = (f"the data cache {path} was damaged; it was written again",)
        try:
            cache_folder.write(path, {**meta, "name": name, "fingerprint": fingerprint}, arrays)
        except OSError as error:
            needed = sum(array.nbytes for array in arrays.values())
            raise _unwritable(folder, error, needed) from error
    return open_verified(path)
