"""The header of an encoded bundle: read and checked whole before any tensor is allocated.

    8 bytes length | JSON: tensors (dtype, shape, offsets), "__metadata__" | bytes of the tensors

is the safetensors format; groups, scalars and blobs are JSON in its metadata.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coterie.core.bundle import Bundle, Scalar, clean_scalar
from coterie.core.schema import DTYPES, Form, Kind, Schema, Shape, count_bytes

SEPARATOR = "\x1f"  # between group and tensor name; neither may contain it
LENGTH_BYTES = 8
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_SHA256 = re.compile("[0-9a-f]{64}")
_SIDES = 32  # the most dimensions of a tensor; numpy has no more either
_CODES = dict(
    zip(("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64"), DTYPES, strict=True)
)
BLOB_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that is read of a bundle; what is larger is refused before it is parsed."""

    total: int = 4 * 2**30  # bytes of all
    header: int = 2 * 2**20  # bytes of JSON: about 16,000 tensors
    tensors: int = 16_384
    blobs: int = 1024


class Place(NamedTuple):
    """Where the bytes of a tensor begin in the body, and what it is."""

    begin: int
    size: int
    kind: Kind


class BlobHead(NamedTuple):
    """What a header says of a blob."""

    path: str
    kind: Kind
    sha256: str

    @property
    def size(self) -> int:
        """The size of the array in bytes."""
        return count_bytes(self.kind[1], np.dtype(self.kind[0]).itemsize)


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was checked: every tensor lies in the body, and the body has nothing else."""

    body: int  # where the bytes of the tensors begin
    places: Mapping[str, Mapping[str, Place]]  # by group and name
    scalars: Mapping[str, Scalar]
    blobs: Mapping[str, BlobHead]

    def form(self) -> Form:
        """Return the dtypes and shapes that the header announces."""
        groups = {
            group: {name: place.kind for name, place in places.items()}
            for group, places in self.places.items()
        }
        return Form(groups, {name: blob.kind for name, blob in self.blobs.items()})

    def nbytes(self) -> int:
        """Count what `Bundle.nbytes` would count."""
        tensors = sum(place.size for group in self.places.values() for place in group.values())
        blobs = sum(blob.size for blob in self.blobs.values())
        return tensors + blobs + Bundle(scalars=self.scalars).nbytes()


def measure(data: memoryview) -> int:
    """Return the length of a header; `ValueError` if it is not all there."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES or LENGTH_BYTES + length > len(data):
        raise ValueError("the header is truncated")
    return length


def longest(expected: Schema) -> int:
    """Bound the header of a bundle of this schema: names as escaped JSON, shapes, some scalars."""
    names = [group + name for group, kinds in expected.groups.items() for name in kinds]
    names += [*expected.groups, *expected.blobs]
    return 64 * 1024 + sum(512 + 12 * len(name) for name in names)


def read(data: memoryview, limits: Limits) -> Header:
    """Parse and check a header; `ValueError` and the like for anything that is wrong."""
    if len(data) > limits.total:
        raise ValueError(f"it has {len(data)} bytes, more than {limits.total}")
    length = measure(data)
    if length > limits.header:
        raise ValueError(f"the header has {length} bytes, more than {limits.header}")
    body = LENGTH_BYTES + length
    entries = parse_json(bytes(data[LENGTH_BYTES:body]))
    head = parse_json(entries.pop("__metadata__")["bundle"].encode())
    groups, scalars, blobs = head["groups"], head["scalars"], head["blobs"]
    if len(entries) > limits.tensors or len(blobs) > limits.blobs:
        raise ValueError(f"it has {len(entries)} tensors and {len(blobs)} blobs")
    if not (isinstance(groups, list) and all(isinstance(group, str) for group in groups)):
        raise ValueError("the groups are not a list of names")
    if not isinstance(scalars, dict):
        raise ValueError("the scalars are not named")
    "".join(
        [*entries, *groups, *scalars, *blobs]
    ).encode()  # JSON can spell names that UTF-8 cannot
    places: dict[str, dict[str, Place]] = {group: {} for group in groups}
    for key, entry in entries.items():
        group, name = key.split(SEPARATOR)
        places[group][name] = _read_place(entry)
    _check_cover([p for group in places.values() for p in group.values()], len(data) - body)
    return Header(
        body,
        places,
        {name: clean_scalar(name, value) for name, value in scalars.items()},
        {name: _read_blob(*fields) for name, fields in blobs.items()},
    )


def parse_json(text: bytes) -> Any:
    """Parse JSON of which no object has a key twice, which parsers would read in different ways."""
    return json.loads(text, object_pairs_hook=_make_object)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has a key twice")
    return made


def _read_place(entry: Any) -> Place:
    begin, end = entry["data_offsets"]
    shape, dtype = _read_shape(entry["shape"]), _CODES[entry["dtype"]]
    size = count_bytes(shape, DTYPES[dtype].itemsize)
    if type(begin) is not int or type(end) is not int or begin < 0 or end - begin != size:
        raise ValueError(f"{dtype} {list(shape)} does not fit into {begin!r} to {end!r}")
    return Place(begin, size, (dtype, shape))


def _check_cover(places: list[Place], size: int) -> None:
    """Tensors follow each other without gaps and overlaps, up to the end."""
    end = 0
    for place in sorted(places, key=lambda place: (place.begin, place.size)):
        if place.begin != end:
            raise ValueError(f"no tensor begins at byte {end} of the body")
        end += place.size
    if end != size:
        raise ValueError(f"the tensors have {end} bytes, the body {size}")


def _read_blob(path: Any, dtype: Any, shape: Any, sha256: Any) -> BlobHead:
    """Check every field of a blob; its checksum is later used as a file name."""
    if not (isinstance(path, str) and _SHA256.fullmatch(sha256)):
        raise ValueError(f"not a path and SHA-256: {path!r}, {sha256!r}")
    if dtype not in BLOB_DTYPES:
        raise ValueError(f"not a numeric dtype: {dtype!r}")
    blob = BlobHead(path, (dtype, _read_shape(shape)), sha256)
    blob.size  # noqa: B018 - a size that no array can have is an error here, not at its first use
    return blob


def _read_shape(shape: Any) -> Shape:
    if not isinstance(shape, list) or len(shape) > _SIDES:
        raise ValueError(f"not a shape: {shape!r:.60}")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"not a shape: {shape!r:.60}")
    return tuple(shape)
