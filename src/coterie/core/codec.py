"""Encodes bundles as safetensors, with scalars and blobs as JSON in the header.

Decoding creates tensors, numbers and strings only, never other objects.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load, save

from coterie.core.bundle import Blob, Bundle, Tensors
from coterie.core.errors import CodecError

_SEPARATOR = "\x1f"  # between group and tensor name; neither may contain it
_LENGTH_BYTES = 8  # a safetensors file starts with the length of its header
_SHA256 = re.compile("[0-9a-f]{64}")
_HEADER_LIMIT = 64 * 2**20
_MALFORMED = (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)


def encode(bundle: Bundle) -> bytes:
    """Encode a bundle; equal bundles give equal bytes."""
    flat: Tensors = {}
    storages: set[int] = set()
    for group, tensors in bundle.tensors.items():
        for name, tensor in tensors.items():
            if _SEPARATOR in group or _SEPARATOR in name:
                raise CodecError(f"a name must not contain U+001F: {group!r}, {name!r}")
            tensor = tensor.detach().cpu().contiguous()
            address = tensor.untyped_storage().data_ptr()
            # safetensors refuses tensors that share memory, and views into a larger buffer
            if address in storages or tensor.nbytes != tensor.untyped_storage().nbytes():
                tensor = tensor.clone()
            storages.add(address)
            flat[f"{group}{_SEPARATOR}{name}"] = tensor
    header = {
        "groups": sorted(bundle.tensors),
        "scalars": dict(bundle.scalars),
        "blobs": {
            name: [str(blob.path), blob.dtype, list(blob.shape), blob.sha256]
            for name, blob in bundle.blobs.items()
        },
    }
    return save(flat, metadata={"bundle": json.dumps(header, sort_keys=True)})


def decode(data: bytes | bytearray | memoryview) -> Bundle:
    """Decode what `encode` wrote; raise `CodecError` for anything else."""
    data = bytes(data)
    try:
        header = json.loads(_read_header(data)["__metadata__"]["bundle"])
        groups, scalars = header["groups"], header["scalars"]
        if not (isinstance(groups, list) and all(isinstance(group, str) for group in groups)):
            raise ValueError("the groups are not a list of names")
        if not isinstance(scalars, dict) or any(
            not isinstance(value, int | float | str) for value in scalars.values()
        ):
            raise ValueError("the scalars are not named numbers and strings")
        tensors: dict[str, Tensors] = {group: {} for group in groups}
        for key, tensor in load(data).items():
            group, name = key.split(_SEPARATOR)
            tensors[group][name] = tensor
        blobs = {
            name: _make_blob(path, dtype, shape, sha256)
            for name, (path, dtype, shape, sha256) in header["blobs"].items()
        }
        return Bundle(tensors, scalars, blobs)
    except _MALFORMED as error:
        raise CodecError(f"not a bundle: {type(error).__name__}: {error}") from error


def _make_blob(path: Any, dtype: Any, shape: Any, sha256: Any) -> Blob:
    """Check every field of a blob; its checksum is later used as a file name."""
    if not (isinstance(path, str) and isinstance(dtype, str) and _SHA256.fullmatch(sha256)):
        raise ValueError(f"not a path, dtype and SHA-256: {path!r}, {dtype!r}, {sha256!r}")
    if not (isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape)):
        raise ValueError(f"not a shape: {shape!r}")
    if np.dtype(dtype).name != dtype or np.dtype(dtype).kind not in "biuf":
        raise ValueError(f"not a numeric dtype: {dtype!r}")
    return Blob(Path(path), dtype, tuple(shape), sha256)


def _read_header(data: bytes) -> Any:
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or length > min(len(data) - _LENGTH_BYTES, _HEADER_LIMIT):
        raise ValueError("the header is truncated")
    return json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
