"""Checking replies, and reducing them: the only place where uploads are added up.

Sums run in cohort order and in float64, and are cast once at the end: another order or another
width would change most float32 bits.
"""

import math
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.core.bundle import Blob, Payload, Scalar, Tensors
from coterie.core.errors import NoReplies
from coterie.core.schema import describe
from coterie.core.task import ClientId, Reply
from coterie.kit.expect import Bounds, Expected
from coterie.kit.rules import Gather, Mean, Rules

LARGEST = 1e30  # squares of such entries leave float32: no honest update has them
_SAMPLES_LIMIT = 2**53  # beyond it float64 weights are no longer exact
_CHUNK = 1 << 20  # entries of a blob that are looked at together
_FREE = Bounds()


class Screen:
    """Decides whether a reply may be reduced; says why not.

    It compares with what the stage expects, never with what another client sent. `samples` are the
    numbers of samples that the server knows of, and `folder` is where blobs must lie.
    """

    def __init__(
        self,
        expected: Expected,
        samples: Mapping[ClientId, int] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.expected, self._samples, self._folder = expected, samples or {}, folder

    def problem(self, reply: Reply) -> str | None:
        """What is wrong with a reply, or None."""
        n = reply.examples
        if isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= _SAMPLES_LIMIT:
            return f"its number of samples is {n!r}"
        schema = self.expected.schema(self._samples.get(reply.client, n))
        return (
            schema.problem(describe(reply.up))
            or self._wild_tensors(reply.up)
            or self._wrong_arrays(reply.up.blobs)
            or _wild_scalars(reply.up.scalars)
        )

    def _wild_tensors(self, up: Payload) -> str | None:
        for group, tensors in up.tensors.items():
            for name, tensor in tensors.items():
                bounds = self.expected.bounds.get((group, name), _FREE)
                if problem := _wild(tensor, bounds):
                    return f"{group}/{name} holds {problem}"
        return None

    def _wrong_arrays(self, blobs: Mapping[str, Blob]) -> str | None:
        """Compare files with what is said of them before any is opened."""
        if len({blob.shape[0] for blob in blobs.values()}) > 1:
            rows = {name: blob.shape[0] for name, blob in blobs.items()}
            return f"its arrays have different numbers of rows: {rows}"
        for name, blob in blobs.items():
            if problem := _misplaced(blob, self._folder):
                return f"the array {name!r} {problem}"
            bounds = self.expected.array_bounds.get(name, _FREE)
            values = blob.open().reshape(-1)
            for start in range(0, len(values), _CHUNK):
                if problem := _wild(values[start : start + _CHUNK], bounds):
                    return f"the array {name!r} holds {problem}"
        return None


def _wild(values: Tensor | np.ndarray, bounds: Bounds) -> str | None:
    """Describe a value that no reply may have, or return None."""
    if not math.prod(values.shape) or (bounds == _FREE and not _is_float(values)):
        return None
    lowest, highest = values.min().item(), values.max().item()  # NaN wins both
    if _is_float(values):
        largest = max(-lowest, highest)
        if not largest <= LARGEST:
            return f"{largest}"
    return bounds.problem(lowest, highest)


def _is_float(values: Tensor | np.ndarray) -> bool:
    if isinstance(values, Tensor):
        return values.is_floating_point()
    return values.dtype.kind == "f"


def _wild_scalars(scalars: Mapping[str, Scalar]) -> str | None:
    for name, value in scalars.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"the scalar {name!r} is {value}"
    return None


def _misplaced(blob: Blob, folder: Path | None) -> str | None:
    """Say why a blob is not what it claims to be: a whole file in the folder for such files."""
    try:
        status, path = blob.path.lstat(), blob.path.resolve(strict=True)
    except (OSError, ValueError):  # a path with a zero byte is a ValueError
        return "is not there"
    inside = folder is None or path.is_relative_to(folder.resolve())
    if not inside or not stat.S_ISREG(status.st_mode):
        return "is no file of the folder for uploads"
    if status.st_size != blob.nbytes:
        return f"has {status.st_size} bytes, and its shape needs {blob.nbytes}"
    return None


@dataclass(frozen=True, slots=True)
class Reduced:
    """The replies of a round, reduced."""

    groups: Mapping[str, Tensors]  # the groups reduced by mean and sum
    gathered: Mapping[str, Mapping[ClientId, Tensors]]
    examples: Mapping[ClientId, int]
    scalars: Mapping[ClientId, Mapping[str, Scalar]]
    blobs: Mapping[ClientId, Mapping[str, Blob]]

    def __getitem__(self, group: str) -> Tensors:
        return dict(self.groups[group])


def reduce(replies: Iterator[Reply], rules: Rules) -> Reduced:
    """One pass over the replies; means are weighted by numbers of samples.

    Integer tensors under `mean` (BatchNorm's batch counter) take the largest value.
    """
    gathered: dict[str, dict[ClientId, Tensors]] = {
        group: {} for group, rule in rules.items() if isinstance(rule, Gather)
    }
    sums: dict[str, Tensors] = {}
    dtypes: dict[str, dict[str, torch.dtype]] = {}
    examples: dict[ClientId, int] = {}
    scalars: dict[ClientId, Mapping[str, Scalar]] = {}
    blobs: dict[ClientId, Mapping[str, Blob]] = {}
    for reply in replies:
        examples[reply.client] = reply.examples
        scalars[reply.client], blobs[reply.client] = reply.up.scalars, reply.up.blobs
        for group, rule in rules.items():
            tensors = reply.up[group]
            if isinstance(rule, Gather):
                gathered[group][reply.client] = tensors
                continue
            dtypes.setdefault(group, {name: t.dtype for name, t in tensors.items()})
            averaged = isinstance(rule, Mean)
            _add(sums.setdefault(group, {}), tensors, reply.examples if averaged else 1, averaged)
    if not examples:
        raise NoReplies("no valid reply to reduce")
    total = sum(examples.values())
    groups: dict[str, Tensors] = {}
    for group, tensors in sums.items():
        weight, kinds = total if isinstance(rules[group], Mean) else 1, dtypes[group]
        means = {n: t / weight if t.is_floating_point() else t for n, t in tensors.items()}
        groups[group] = {name: tensor.to(kinds[name]) for name, tensor in means.items()}
    return Reduced(groups, gathered, examples, scalars, blobs)


def _add(sums: Tensors, tensors: Tensors, weight: int, averaged: bool) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            part = tensor.to(torch.float64) * weight
            sums[name] = sums[name].add_(part) if name in sums else part
        elif name not in sums:
            sums[name] = tensor.to(torch.int64)
        elif averaged:
            sums[name] = torch.maximum(sums[name], tensor.to(torch.int64))
        else:
            sums[name] = sums[name] + tensor
