"""Bundles: the one container for everything that is sent or saved.

Payloads, server states and client states are all bundles, so that one codec, one checkpoint and
one byte count serve them all.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from coterie.core import files

Tensors = dict[str, Tensor]
Scalar = int | float | str | bool

_NUMBER_BYTES = 8
_MOST_BITS = 1024  # of an integer: the range of a float, and little enough for every JSON parser


@dataclass(frozen=True, slots=True)
class Blob:
    """A large array that stays on disk: its path, dtype, shape and checksum."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def write(cls, path: Path, rows: Iterable[np.ndarray]) -> "Blob":
        """Stream arrays of one dtype and row shape to `path`, one in memory at a time."""
        digest, count, dtype, tail = hashlib.sha256(), 0, None, ()
        with files.disk_errors(path):
            files.mkdir(path.parent)
            file = files.open_to_write(path)
        with file:
            for part in rows:
                part = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
                if dtype is None:
                    dtype, tail = part.dtype, part.shape[1:]
                if part.dtype != dtype or part.shape[1:] != tail:
                    raise ValueError(
                        f"rows of {dtype} {tail} expected, got {part.dtype} {part.shape[1:]}"
                    )
                digest.update(part.data)
                with files.disk_errors(path, part.nbytes):
                    files.write(file, part.data)
                count += len(part)
        if dtype is None:
            raise ValueError(f"the blob at {path} has no rows")
        return cls(path, dtype.name, (count, *tail), digest.hexdigest())

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def open(self) -> np.ndarray:
        """Memory-map the array read-only."""
        if self.nbytes == 0:  # an empty file cannot be mapped
            return np.empty(self.shape, np.dtype(self.dtype))
        return np.memmap(self.path, dtype=np.dtype(self.dtype), mode="r", shape=self.shape)

    def is_intact(self) -> bool:
        """Whether the file can be read, and still has the checksum of what was written."""
        if not self.path.is_file() or self.path.stat().st_size != self.nbytes:
            return False
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Bundle:
    """Named groups of tensors, named scalars and named blobs; immutable."""

    tensors: Mapping[str, Tensors] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    blobs: Mapping[str, Blob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups = {
            group: {name: tensor.detach() for name, tensor in tensors.items()}
            for group, tensors in self.tensors.items()
        }
        object.__setattr__(self, "tensors", MappingProxyType(groups))
        scalars = {name: clean_scalar(name, value) for name, value in self.scalars.items()}
        object.__setattr__(self, "scalars", MappingProxyType(scalars))
        object.__setattr__(self, "blobs", MappingProxyType(dict(self.blobs)))

    def __getitem__(self, group: str) -> Tensors:
        try:
            return dict(self.tensors[group])
        except KeyError:
            have = ", ".join(sorted(self.tensors)) or "none"
            raise KeyError(f"the bundle has no group {group!r}; it has: {have}") from None

    def get(self, group: str) -> Tensors:
        """The tensors of a group; empty if there is no such group."""
        return dict(self.tensors.get(group, {}))

    def __contains__(self, group: object) -> bool:
        return group in self.tensors

    def __reduce__(self) -> str:
        raise TypeError("bundles travel through coterie.core.codec, not through pickle")

    def replace(self, **groups: Tensors) -> "Bundle":
        """Copy the bundle with these groups of tensors added or replaced."""
        return Bundle({**self.tensors, **groups}, self.scalars, self.blobs)

    def without(self, *groups: str) -> "Bundle":
        """Copy the bundle without these groups of tensors."""
        kept = {name: group for name, group in self.tensors.items() if name not in groups}
        return Bundle(kept, self.scalars, self.blobs)

    def nbytes(self) -> int:
        """The communication cost in bytes; every number counts as eight."""
        total = sum(tensor.nbytes for _, _, tensor in self._walk())
        total += sum(blob.nbytes for blob in self.blobs.values())
        for value in self.scalars.values():
            total += len(value.encode()) if isinstance(value, str) else _NUMBER_BYTES
        return total

    def digest(self) -> str:
        """SHA-256 over the sorted tensors (name, dtype, shape, bytes), scalars and blobs."""
        sha = hashlib.sha256(json.dumps(sorted(self.tensors)).encode())
        for group, name, tensor in self._walk():
            sha.update(json.dumps([group, name, str(tensor.dtype), list(tensor.shape)]).encode())
            sha.update(raw_bytes(tensor))
        sha.update(json.dumps(dict(sorted(self.scalars.items()))).encode())
        for name, blob in sorted(self.blobs.items()):
            sha.update(json.dumps([name, blob.dtype, list(blob.shape), blob.sha256]).encode())
        return sha.hexdigest()

    def _walk(self) -> Iterator[tuple[str, str, Tensor]]:
        for group in sorted(self.tensors):
            for name in sorted(self.tensors[group]):
                yield group, name, self.tensors[group][name]


def clean_scalar(name: str, value: Any) -> Scalar:
    """Return a scalar as a plain number, truth value or text; `TypeError` if it is none.

    Numbers of numpy become plain ones, so that a bundle is the same before and after a journey.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | float):
        return bool(value) if isinstance(value, bool) else float(value)
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise TypeError(f"the scalar {name!r} is an integer of {value.bit_length()} bits")
        return int(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError(f"the scalar {name!r} is text that UTF-8 cannot write") from None
        return str(value)
    kind, remedy = type(value).__name__, ""
    if isinstance(value, Tensor):
        remedy = "; .item() gives its number"
    raise TypeError(f"the scalar {name!r} is {kind}, not a number, text, True or False{remedy}")


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in row-major order, for any dtype."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.stride() != (1,):  # a tensor of at most one entry is contiguous with any stride
        flat = flat.new_empty(flat.shape).copy_(flat)
    return flat.view(torch.uint8).numpy().data


# roles, not types
Payload: TypeAlias = Bundle
ServerState: TypeAlias = Bundle
ClientState: TypeAlias = Bundle
