"""Representations of training and test samples by a frozen network."""

from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.kit import Evaluator, Frozen, Shard

Features = tuple[Tensor, Tensor]  # h or z of length one, and the labels
Layer = Literal["h", "z"]  # before the projector, or behind it

# Several evaluators ask for the same features; both keys are new in every evaluation.
_known: WeakKeyDictionary[Frozen, WeakKeyDictionary[Shard, dict[tuple[bool, Layer], Features]]]
_known = WeakKeyDictionary()


class LayerEvaluator(Evaluator):
    """An evaluator of h or z, as its field `layer` says."""

    layer: Layer

    @property
    def needs(self) -> tuple[str, ...]:
        """The projector, for z."""
        return ("projector",) if self.layer == "z" else ()


def features(net: Frozen, data: Shard, test: bool = False, layer: Layer = "h") -> Features:
    """Compute h (or z) of all training (or test) samples, each divided by its length."""
    known = _known.setdefault(net, WeakKeyDictionary()).setdefault(data, {})
    if (test, layer) not in known:
        known[test, layer] = _encode(net, data, test, layer)
    return known[test, layer]


def _encode(net: Frozen, data: Shard, test: bool, layer: Layer) -> Features:
    encode = net.encode if layer == "h" else net.project
    parts = [(encode(batch.x), batch.y) for batch in data.sweep(test=test)]
    if not parts:
        return torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
    h, y = (torch.cat(column) for column in zip(*parts, strict=True))
    return F.normalize(h, dim=1), y
