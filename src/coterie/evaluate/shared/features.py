"""Representations of a body of data."""

from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.kit import Bundle, ClientState, Frozen, Shard

Features = tuple[Tensor, Tensor]  # h or z of length one, and the labels
Layer = Literal["h", "z"]  # before the projector, or behind it

# Several evaluators ask for the same features; both keys are new in every evaluation.
_known: WeakKeyDictionary[Frozen, WeakKeyDictionary[Shard, dict[tuple[bool, Layer], Features]]]
_known = WeakKeyDictionary()


def heads_for(layer: Layer) -> tuple[str, ...]:
    """The heads that a network needs to have a layer."""
    return ("projector",) if layer == "z" else ()


def features(net: Frozen, data: Shard, test: bool = False, layer: Layer = "h") -> Features:
    """h (or z) of all training (or test) samples, each divided by its length."""
    found = _known.setdefault(net, WeakKeyDictionary()).setdefault(data, {})
    if (test, layer) not in found:
        found[test, layer] = _encode(net, data, test, layer)
    return found[test, layer]


def encode_client(net: Frozen, data: Shard) -> ClientState:
    """A client's state for an evaluation: h and y of its training and of its test samples."""
    groups = {}
    for group, test in (("train", False), ("test", True)):
        h, y = features(net, data, test)
        groups[group] = {"h": h.cpu(), "y": y.cpu()}
    return Bundle(groups)


def _encode(net: Frozen, data: Shard, test: bool, layer: Layer) -> Features:
    encode = net.encode if layer == "h" else net.project
    parts = [(encode(batch.x), batch.y) for batch in data.sweep(test=test)]
    if not parts:
        return torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
    h, y = (torch.cat(column) for column in zip(*parts, strict=True))
    return F.normalize(h, dim=1), y
