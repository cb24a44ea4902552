"""Weighted kNN of the global model's representations, on the global test set.

The k = 200 nearest training samples (all, where there are fewer) by cosine vote for their class
with the weight exp(similarity / 0.1) (Wu et al., CVPR 2018). The bank is the whole training set
with the test transform. Nothing is trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.evaluate.shared.features import Layer, features
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen

NEIGHBOURS = 200
TEMPERATURE = 0.1
_ROWS = 256  # queries at once


def vote(bank: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """The class of every query; bank and queries have length one."""
    k = min(NEIGHBOURS, len(bank))
    found = []
    for start in range(0, len(queries), _ROWS):
        nearest, places = (queries[start : start + _ROWS] @ bank.T).topk(k, dim=1)
        voters = F.one_hot(labels[places], classes).to(nearest.dtype)
        votes = (nearest / TEMPERATURE).exp()[:, None] @ voters
        found.append(votes[:, 0].argmax(dim=1))
    return torch.cat(found)


def neighbours(
    net: Frozen, data: Shard, name: str = "knn", layer: Layer = "h"
) -> Mapping[str, float]:
    """The accuracy on the test samples with the training samples as the bank, and its size."""
    (bank, labels), (queries, y) = (features(net, data, test, layer) for test in (False, True))
    if not (len(labels) and len(y)):
        return {}
    right = int((vote(bank, labels, queries, data.classes) == y).sum())
    return {name: right / len(y), f"{name}_bank": float(len(labels))}


@final
@dataclass(frozen=True)
class Knn(Evaluator):
    """The global model, all training samples as the bank."""

    where = "server"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`knn` and `knn_bank`."""
        return neighbours(net, data)
