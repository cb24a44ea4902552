"""Checking replies, and reducing them: the only place where uploads are added up.

Sums run in cohort order and in float64, and are cast once at the end: another order or another
width would change most float32 bits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from coterie.core.bundle import Blob, Payload, Scalar, Tensors
from coterie.core.errors import ConfigError, NoReplies
from coterie.core.task import ClientId, Reply
from coterie.kit.rules import Gather, Mean, Rules

LARGEST = 1e30  # squares of such entries leave float32: no honest update has them
_SAMPLES_LIMIT = 2**53  # beyond it float64 weights are no longer exact

Schema = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def schema(tensors: Tensors) -> Schema:
    """Names, dtypes and shapes of a group."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


class Screen:
    """Decides whether a reply may be reduced; says why not."""

    def __init__(self, down: Payload, rules: Rules) -> None:
        self._rules = rules
        self._expected: dict[str, Schema] = {}
        for group, rule in rules.items():
            if rule.like and rule.like not in down:
                raise ConfigError(
                    f"uploads of the group {group!r} must look like {rule.like!r} of the "
                    f"broadcast, which has: {', '.join(down.tensors) or 'no group'}"
                )
            if (rule.like or group) in down:
                self._expected[group] = schema(down[rule.like or group])
        self._arrays: Mapping[str, tuple[str, tuple[int, ...]]] | None = None  # dtype, row shape

    def problem(self, reply: Reply) -> str | None:
        """What is wrong with a reply, or None."""
        n = reply.examples
        if isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= _SAMPLES_LIMIT:
            return f"its number of samples is {n!r}"
        for group in reply.up.tensors:
            if group not in self._rules:
                return f"it sent the group {group!r}, expected: {', '.join(self._rules) or 'none'}"
        for group in self._rules:
            if group not in reply.up:
                return f"it did not send the group {group!r}"
            if problem := self._unlike(group, reply.up[group]) or _wild(group, reply.up[group]):
                return problem
        arrays = {name: (blob.dtype, blob.shape[1:]) for name, blob in reply.up.blobs.items()}
        if self._arrays is not None and arrays != self._arrays:
            return f"its arrays are {arrays}, not {self._arrays}"
        # only a reply that is right in every respect may say what the others must look like
        self._arrays = arrays
        for group in self._rules:
            self._expected.setdefault(group, schema(reply.up[group]))
        return None

    def _unlike(self, group: str, tensors: Tensors) -> str | None:
        expected, sent = self._expected.get(group), schema(tensors)
        if expected is None or expected == sent:
            return None
        for name in sorted(expected.keys() | sent.keys()):
            if name not in sent:
                return f"group {group!r} misses {name!r}"
            if name not in expected:
                return f"group {group!r} has an unknown {name!r}"
            if sent[name] != expected[name]:
                return f"{group}/{name} is {_spell(sent[name])}, not {_spell(expected[name])}"
        return None


def _spell(kind: tuple[torch.dtype, tuple[int, ...]]) -> str:
    return f"{str(kind[0]).removeprefix('torch.')} {list(kind[1])}"


def _wild(group: str, tensors: Tensors) -> str | None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            largest = float(tensor.abs().max())  # NaN wins a maximum
            if not largest <= LARGEST:
                return f"{group}/{name} holds {largest}"
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
