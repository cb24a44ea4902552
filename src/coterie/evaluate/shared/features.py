"""Representations of training and test samples by a frozen network."""

from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.kit import Bundle, ClientState, FederatedEvaluator, Frozen, Shard

Features = tuple[Tensor, Tensor]  # h or z of length one, and the labels
Layer = Literal["h", "z"]  # before the projector, or behind it

# Several evaluators ask for the same features; both keys are new in every evaluation.
_known: WeakKeyDictionary[Frozen, WeakKeyDictionary[Shard, dict[tuple[bool, Layer], Features]]]
_known = WeakKeyDictionary()


def heads_for(layer: Layer) -> tuple[str, ...]:
    """List the heads that a network needs to have a layer."""
    return ("projector",) if layer == "z" else ()


def features(net: Frozen, data: Shard, test: bool = False, layer: Layer = "h") -> Features:
    """Compute h (or z) of all training (or test) samples, each divided by its length."""
    known = _known.setdefault(net, WeakKeyDictionary()).setdefault(data, {})
    if (test, layer) not in known:
        known[test, layer] = _encode(net, data, test, layer)
    return known[test, layer]


def encode_client(self: FederatedEvaluator, net: Frozen, data: Shard) -> ClientState:
    """Fill the slot `begin`: the client's state is h and y of its training and test samples."""
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
