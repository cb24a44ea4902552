"""Encodes bundles as safetensors, with scalars and blobs as JSON in the header.

Decoding creates tensors, numbers and strings only, never other objects. It checks sizes, header and
schema before it allocates, and raises `CodecError` for bytes that are not what was expected.

Between processes of one machine blobs travel as paths (`encode`, `decode`). Between machines they
travel as bytes behind the rest (`pack`, `unpack`):

    8 bytes magic | 8 bytes length | an encoded bundle without paths | blobs, by name
"""

import hashlib
import json
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from coterie.core import files, header
from coterie.core.bundle import Blob, Bundle, Tensors
from coterie.core.errors import CodecError
from coterie.core.header import MALFORMED, SEPARATOR, Header, Limits, Place
from coterie.core.schema import DTYPES, Schema, name_of

__all__ = ["DEFAULT", "OWN", "Limits", "Mismatch", "check", "decode", "encode", "pack", "unpack"]

DEFAULT = Limits()
OWN = Limits(total=2**62, header=64 * 2**20, tensors=10**6, blobs=10**6)
"""For what this machine wrote itself: states of clients, checkpoints, broadcasts to workers."""

_PREFIX = struct.Struct("<8sQ")
_MAGIC = b"coterie\x01"
_CHUNK = 1 << 20
_Data = bytes | bytearray | memoryview


class Mismatch(CodecError):
    """An intact bundle with other names, dtypes or shapes than expected; `nbytes`: its size."""

    def __init__(self, problem: str, nbytes: int) -> None:
        super().__init__(problem)
        self.nbytes = nbytes


def encode(bundle: Bundle) -> bytes:
    """Encode a bundle, with blobs as paths; equal bundles give equal bytes."""
    return _encode(bundle, {name: str(blob.path) for name, blob in bundle.blobs.items()})


def decode(data: _Data, limits: Limits = OWN, expected: Schema | None = None) -> Bundle:
    """Decode what `encode` wrote; `CodecError` for anything else, `Mismatch` for another schema."""
    view = memoryview(data).cast("B")
    parsed = _read_header(view, limits, expected)
    blobs = {
        name: Blob(Path(blob.path), *blob.kind, blob.sha256) for name, blob in parsed.blobs.items()
    }
    return Bundle(_read_tensors(parsed, view), parsed.scalars, blobs)


def pack(bundle: Bundle) -> bytes:
    """Encode a bundle with the contents of its blobs, for another machine."""
    body = _encode(bundle, dict.fromkeys(bundle.blobs, ""))
    parts: list[bytes | mmap.mmap] = [_PREFIX.pack(_MAGIC, len(body)), body]
    try:
        for name, blob in sorted(bundle.blobs.items()):
            if blob.path.stat().st_size != blob.nbytes:
                raise CodecError(f"the blob {name!r} at {blob.path} does not have its size")
            if blob.nbytes:
                with blob.path.open("rb") as file:  # mapped, so that only the result is in memory
                    parts.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return b"".join(parts)
    except OSError as error:
        raise CodecError(f"a blob cannot be read: {error}") from error
    finally:
        for part in parts[2:]:
            assert isinstance(part, mmap.mmap)
            part.close()


def unpack(
    data: _Data, folder: Path, limits: Limits = DEFAULT, expected: Schema | None = None
) -> Bundle:
    """Decode what `pack` wrote; its blobs become files of `folder`, named by their SHA-256.

    `CodecError` for anything that is wrong with the data, `CheckpointError` if the disk fails. A
    blob is written only if all sizes are right, and gets its name only if its contents are right.
    """
    view = memoryview(data).cast("B")
    if len(view) > limits.total:
        raise CodecError(f"not a bundle: it has {len(view)} bytes, more than {limits.total}")
    if len(view) < _PREFIX.size:
        raise CodecError("not a bundle: its beginning is missing")
    magic, length = _PREFIX.unpack_from(view)
    rest = view[_PREFIX.size :]
    if magic != _MAGIC or length > len(rest):
        raise CodecError("not a bundle: its beginning is wrong")
    parsed = _read_header(rest[:length], limits, expected)
    arrays = rest[length:]
    if sum(blob.size for blob in parsed.blobs.values()) != len(arrays):
        raise CodecError(f"not a bundle: its blobs do not have {len(arrays)} bytes")
    if any(blob.path for blob in parsed.blobs.values()):
        raise CodecError("not a bundle: a blob between machines has no path")
    tensors, blobs = _read_tensors(parsed, rest[:length]), {}
    for name, head in sorted(parsed.blobs.items()):
        path = folder / head.sha256
        _write_checked(path, arrays[: head.size], head.sha256, name)
        blobs[name] = Blob(path, *head.kind, head.sha256)
        arrays = arrays[head.size :]
    return Bundle(tensors, parsed.scalars, blobs)


def check(bundle: Bundle) -> None:
    """Raise `CodecError` if a bundle cannot be encoded; much cheaper than to encode it."""
    for group, tensors in bundle.tensors.items():
        for name, tensor in tensors.items():
            if SEPARATOR in group or SEPARATOR in name:
                raise CodecError(f"a name must not contain U+001F: {group!r}, {name!r}")
            if tensor.dtype not in DTYPES.values():
                known = ", ".join(DTYPES)
                raise CodecError(f"{group}/{name} is {name_of(tensor.dtype)}, not one of {known}")


def _encode(bundle: Bundle, paths: dict[str, str]) -> bytes:
    check(bundle)
    flat: Tensors = {}
    storages: set[int] = set()
    for group, tensors in bundle.tensors.items():
        for name, tensor in tensors.items():
            tensor = tensor.detach().cpu().contiguous()
            address = tensor.untyped_storage().data_ptr()
            # safetensors refuses tensors that share memory, and views into a larger buffer
            if address in storages or tensor.nbytes != tensor.untyped_storage().nbytes():
                tensor = tensor.clone()
            storages.add(address)
            flat[f"{group}{SEPARATOR}{name}"] = tensor
    head = {
        "groups": sorted(bundle.tensors),
        "scalars": dict(bundle.scalars),
        "blobs": {
            name: [paths[name], blob.dtype, list(blob.shape), blob.sha256]
            for name, blob in bundle.blobs.items()
        },
    }
    try:
        return save(flat, metadata={"bundle": json.dumps(head, sort_keys=True)})
    except (SafetensorError, *MALFORMED) as error:
        raise CodecError(f"it cannot be encoded: {type(error).__name__}: {error}") from error


def _read_header(view: memoryview, limits: Limits, expected: Schema | None) -> Header:
    try:
        if expected is not None and (length := header.measure(view)) > header.longest(expected):
            raise Mismatch(f"its header has {length} bytes, far more than expected", len(view))
        parsed = header.read(view, limits)
    except MALFORMED as error:
        raise CodecError(f"not a bundle: {type(error).__name__}: {error}") from error
    if expected is not None and (problem := expected.problem(parsed.form())):
        raise Mismatch(problem, parsed.nbytes())
    return parsed


def _read_tensors(parsed: Header, view: memoryview) -> dict[str, Tensors]:
    body = view[parsed.body :]
    return {
        group: {name: _read_tensor(place, body) for name, place in places.items()}
        for group, places in parsed.places.items()
    }


def _read_tensor(place: Place, body: memoryview) -> torch.Tensor:
    dtype, shape = place.kind
    tensor = torch.empty(shape, dtype=DTYPES[dtype])
    if place.size:
        raw = np.frombuffer(body, np.uint8, place.size, place.begin)
        if dtype == "bool" and int(raw.max()) > 1:
            raise CodecError("not a bundle: a truth value is neither 0 nor 1")
        tensor.view(-1).view(torch.uint8).numpy()[:] = raw
    return tensor


def _write_checked(path: Path, data: memoryview, sha256: str, name: str) -> None:
    """Write a file under its final name only if its contents have the checksum."""
    temporary = path.with_name(f"{sha256}.{os.getpid()}.tmp")
    digest = hashlib.sha256()
    with files.disk_errors(path, len(data)):
        files.mkdir(path.parent)
        try:
            with files.open_to_write(temporary) as file:
                for start in range(0, len(data), _CHUNK):
                    digest.update(data[start : start + _CHUNK])
                    files.write(file, data[start : start + _CHUNK])
            if digest.hexdigest() != sha256:
                raise CodecError(f"not a bundle: the blob {name!r} does not have its checksum")
            files.rename(temporary, path)
        finally:
            files.remove_file(temporary)
