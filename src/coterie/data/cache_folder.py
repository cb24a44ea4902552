"""The folder of a decoded data set: written whole, verified by its fingerprint, mapped."""

import contextlib
import errno
import hashlib
import json
import mmap
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import files
from coterie.core.errors import DataError
from coterie.core.files import sync_folder, write_durably
from coterie.data.boot_record import hash_once

META = "meta.json"
RACES = 5  # attempts where other processes write the same data set
_SHORT = 16
_CHUNK = 2**20
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NO_HANDLES = (errno.EMFILE, errno.ENFILE)
_OF_FOLDER = ("name", "fingerprint")  # in meta.json, but no part of the fingerprint


class Damaged(DataError):
    """A folder that is not there, or that has to be written again."""


def name_folder(name: str, fingerprint: str) -> str:
    """Return the name of the folder of a data set."""
    return f"{name}-{fingerprint[:_SHORT]}"


def hash_contents(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the fingerprint: the SHA-256 of the description and of the arrays, in their order."""
    digest = _hash_description(meta)
    for values in arrays.values():
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def map_folder(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and the arrays, mapped read-only; the error names a damaged file."""
    meta = _read_meta(path)
    try:
        described = dict(meta["arrays"])
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path / META, error) from error
    return meta, {name: _map(path / f"{name}.npy", kind)[0] for name, kind in described.items()}


def verify(path: Path) -> None:
    """Raise `Damaged` unless a folder has the contents that its name and fingerprint claim.

    Every byte is read, once per boot (`data/boot_record.py`).
    """
    meta, arrays = map_folder(path)
    read = [path / META, *(path / f"{name}.npy" for name in arrays)]
    try:
        fingerprint = hash_once(path.with_name(f"{path.name}.verified"), read, lambda: _hash(path))
    except OSError as error:
        raise explain(path / META, error) from error
    if fingerprint != meta.get("fingerprint") or path.name != name_folder(
        meta.get("name", ""), fingerprint
    ):
        raise damaged(path / META, "its contents do not have the fingerprint that it states")


def write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a temporary folder, then rename it to `path`, so that it appears complete."""
    files.mkdir(path.parent)
    temporary = path.parent / f".{path.name}-{uuid.uuid4().hex}"
    try:
        files.mkdir(temporary, exist_ok=False)
        for name, values in arrays.items():
            _save(temporary / f"{name}.npy", values)
        write_durably(temporary / META, json.dumps(meta, indent=2).encode())
        sync_folder(temporary)
        _move_into_place(temporary, path)
        sync_folder(path.parent)
    finally:
        files.remove_tree(temporary)


def damaged(file: Path, reason: object) -> Damaged:
    """Make the error for a file that is not as it was written."""
    return Damaged(
        f"{file}: the data cache is damaged ({reason}); delete {file.parent} and load it again"
    )


def explain(file: Path, error: OSError) -> DataError:
    """Make the error for a file that cannot be opened, read or mapped."""
    if why := explain_handles(error):
        return DataError(f"{file} cannot be opened: {why}")
    if error.errno == errno.ENOMEM:
        return DataError(f"{file} cannot be mapped: there is no memory left for this process")
    return damaged(file, error)


def explain_handles(error: OSError) -> str:
    """Say that too many files are open, and the remedy; nothing of other errors."""
    if error.errno not in _NO_HANDLES:
        return ""
    whose = "this process" if error.errno == errno.EMFILE else "this machine"
    return f"{whose} has as many files open as it may; raise the limit, as with: ulimit -n 1024"


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads((path / META).read_bytes())
    except OSError as error:
        raise explain(path / META, error) from error
    except ValueError as error:
        raise damaged(path / META, error) from error
    if not isinstance(meta, dict):
        raise damaged(path / META, "it is no table")
    return meta


def _map(file: Path, described: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """Map one array as a plain array, since indexing a `memmap` is slower; and say where it begins.

    It is read-only.
    """
    try:
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)
        array, offset = np.asarray(mapped), int(mapped.offset)
        size = file.stat().st_size
    except OSError as error:
        raise explain(file, error) from error
    except (ValueError, EOFError, AttributeError) as error:
        raise damaged(file, error) from error
    try:
        claimed = (list(described["shape"]), described["dtype"])
    except (KeyError, TypeError) as error:
        raise damaged(file.parent / META, error) from error
    if (list(array.shape), array.dtype.name) != claimed:
        raise damaged(file, f"it has {array.dtype} {array.shape}, unlike {META}")
    if array.size and (size != offset + array.nbytes or not array.flags.c_contiguous):
        raise damaged(file, f"its {size} bytes are not those of its array, in order")
    return array, offset


def _hash(path: Path) -> str:
    """Hash a folder as `hash_contents` does, by reading: a disk that fails is then an `OSError`."""
    meta = _read_meta(path)
    digest = _hash_description(meta)
    for name, described in meta["arrays"].items():
        array, offset = _map(path / f"{name}.npy", described)
        with (path / f"{name}.npy").open("rb") as file:
            file.seek(offset)
            while array.nbytes and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
    return digest.hexdigest()


def _hash_description(meta: Mapping[str, Any]) -> "hashlib._Hash":
    own = {key: value for key, value in meta.items() if key not in _OF_FOLDER}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode())


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
    for _ in range(RACES):
        try:
            files.rename(temporary, path)
            return
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
        with contextlib.suppress(Damaged):
            verify(path)
            return
        aside = temporary.with_name(f"{temporary.name}-damaged")
        # Another process may have moved it in between; then the next rename succeeds.
        with contextlib.suppress(FileNotFoundError):
            files.rename(path, aside)
        if aside.is_dir():
            files.remove_tree(aside)
        else:
            files.remove_file(aside)
    raise OSError(f"{path} is being replaced by other processes repeatedly")
