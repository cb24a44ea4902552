"""Representations of a body of data, and what clients found put together."""

from collections.abc import Mapping
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.task import ClientId
from coterie.kit.context import Shard
from coterie.kit.networks import Frozen

Features = tuple[Tensor, Tensor]  # h or z of length one, and the labels
Layer = Literal["h", "z"]  # before the projector, or behind it

# Several evaluators ask for the same features; both keys are new in every evaluation.
_known: WeakKeyDictionary[Frozen, WeakKeyDictionary[Shard, dict[tuple[bool, Layer], Features]]]
_known = WeakKeyDictionary()


def features(net: Frozen, data: Shard, test: bool = False, layer: Layer = "h") -> Features:
    """h (or z) of all training (or test) samples, each divided by its length."""
    found = _known.setdefault(net, WeakKeyDictionary()).setdefault(data, {})
    if (test, layer) not in found:
        found[test, layer] = _encoded(net, data, test, layer)
    return found[test, layer]


def _encoded(net: Frozen, data: Shard, test: bool, layer: Layer) -> Features:
    encode = net.encode if layer == "h" else net.project
    parts = [(encode(batch.x), batch.y) for batch in data.sweep(test=test)]
    if not parts:
        return torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
    h, y = (torch.cat(column) for column in zip(*parts, strict=True))
    return F.normalize(h, dim=1), y


def over_clients(
    found: Mapping[ClientId, Mapping[str, float]], metric: str, budget: str
) -> dict[str, float]:
    """Mean, spread and worst decile of a metric, each client counting once; the mean budget."""
    values = np.sort([metrics[metric] for metrics in found.values()])
    worst = max(1, len(values) // 10)
    return {
        f"client_{metric}_mean": float(values.mean()),
        f"client_{metric}_std": float(values.std()),
        f"client_{metric}_worst_decile": float(values[:worst].mean()),
        f"client_{metric}_{budget}": float(np.mean([m[budget] for m in found.values()])),
    }
