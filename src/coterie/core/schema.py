"""What a bundle looks like, compared before a single tensor is allocated.

A `Form` is what one bundle has: dtypes and shapes, read from a header or from tensors in memory. A
`Schema` is what it must have. Both executors compare in the same way and give the same reason.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from coterie.core.bundle import Bundle

DTYPES: Mapping[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""The dtypes of tensors that travel: complex and 8-bit floats cannot be added up and do not."""

Shape = tuple[int, ...]
Kind = tuple[str, Shape]  # the name of a dtype, and a shape
Kinds = Mapping[str, Kind]  # of the tensors of a group


@dataclass(frozen=True, slots=True)
class Form:
    """The dtype and shape of every tensor and blob of one bundle."""

    groups: Mapping[str, Kinds]
    blobs: Kinds = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """What a blob must be: its dtype, the shape of a row, and the most rows it may have."""

    dtype: str
    shape: Shape
    most: int


@dataclass(frozen=True, slots=True)
class Schema:
    """What a bundle must look like: exactly these groups and blobs."""

    groups: Mapping[str, Kinds] = field(default_factory=dict)
    blobs: Mapping[str, Rows] = field(default_factory=dict)
    partial: bool = False  # groups, names and blobs may be missing

    def problem(self, form: Form) -> str | None:
        """Say how a bundle differs, or return None."""
        for group in form.groups:
            if group not in self.groups:
                return f"it sent the group {group!r}, expected: {', '.join(self.groups) or 'none'}"
        for group, kinds in self.groups.items():
            if group not in form.groups:
                if self.partial:
                    continue
                return f"it did not send the group {group!r}"
            if problem := self._unlike(group, kinds, form.groups[group]):
                return problem
        return self._wrong_blobs(form.blobs)

    def _unlike(self, group: str, expected: Kinds, sent: Kinds) -> str | None:
        if sent == expected:
            return None
        for name in sorted(expected.keys() | sent.keys()):
            if name not in sent:
                if self.partial:
                    continue
                return f"group {group!r} misses {name!r}"
            if name not in expected:
                return f"group {group!r} has an unknown {name!r}"
            if sent[name] != expected[name]:
                return f"{group}/{name} is {spell(sent[name])}, not {spell(expected[name])}"
        return None

    def _wrong_blobs(self, sent: Kinds) -> str | None:
        for name in sorted(self.blobs.keys() | sent.keys()):
            if name not in sent:
                if self.partial:
                    continue
                return f"it did not send the array {name!r}"
            if name not in self.blobs:
                return f"it sent the array {name!r}, expected: {', '.join(self.blobs) or 'none'}"
            (dtype, shape), rows = sent[name], self.blobs[name]
            if not shape or (dtype, shape[1:]) != (rows.dtype, rows.shape):
                wanted = f"rows of {spell((rows.dtype, rows.shape))}"
                return f"the array {name!r} is {spell((dtype, shape))}, not {wanted}"
            if shape[0] > rows.most:
                return f"the array {name!r} has {shape[0]} rows, at most {rows.most} expected"
        return None


def describe(bundle: Bundle) -> Form:
    """Read off the form of a bundle in memory."""
    groups = {group: kinds_of(tensors) for group, tensors in bundle.tensors.items()}
    return Form(groups, {name: (blob.dtype, blob.shape) for name, blob in bundle.blobs.items()})


def kinds_of(tensors: Mapping[str, torch.Tensor]) -> Kinds:
    """List dtype and shape of every tensor of a group."""
    return {name: (name_of(t.dtype), tuple(t.shape)) for name, t in tensors.items()}


def name_of(dtype: torch.dtype) -> str:
    """Name a dtype as numpy does: `float32`."""
    return str(dtype).removeprefix("torch.")


def spell(kind: Kind) -> str:
    """Write a dtype and a shape for people: `float32 [10, 3]`."""
    return f"{kind[0]} {list(kind[1])}"


def count_bytes(shape: Shape, itemsize: int) -> int:
    """Compute the size of an array without overflow; `ValueError` if none can be so large."""
    size = math.prod(shape) * itemsize
    # a side of 0 hides the others, which are still multiplied when strides are computed
    if math.prod(side for side in shape if side) * itemsize > 2**62:
        raise ValueError(f"no array has the shape {list(shape)}")
    return size
