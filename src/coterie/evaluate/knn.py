"""Weighted kNN of representations: nothing is trained.

The k nearest training samples (all, where there are fewer) by cosine vote for their class with the
weight exp(similarity / temperature) (Wu et al., CVPR 2018). On the server: the global model, with
the whole training set as the bank and the global test set. On clients (`where = "client"`): every
client's personal model where it has one, with its own training and test data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.evaluate.shared.clients import Scores, name_summary, summarise_clients
from coterie.evaluate.shared.features import Layer, LayerEvaluator, features
from coterie.kit import Frozen, Shard, fields
from coterie.kit.evaluator import Where

_ROWS = 256  # queries at once
Voted = tuple[Tensor, Tensor]  # the predicted and the true class of every test sample

# A confusion matrix is of the same votes; both keys are new in every evaluation.
_known: WeakKeyDictionary[Frozen, WeakKeyDictionary[Shard, dict["Knn", Voted]]]
_known = WeakKeyDictionary()


def vote(
    bank: Tensor, labels: Tensor, queries: Tensor, classes: int, k: int, temperature: float
) -> Tensor:
    """Predict the class of every query; the rows of bank and queries are unit vectors."""
    k = min(k, len(bank))
    winners = []
    for start in range(0, len(queries), _ROWS):
        nearest, rows = (queries[start : start + _ROWS] @ bank.T).topk(k, dim=1)
        voters = F.one_hot(labels[rows], classes).to(nearest.dtype)
        votes = (nearest / temperature).exp()[:, None] @ voters
        winners.append(votes[:, 0].argmax(dim=1))
    return torch.cat(winners)


@final
@dataclass(frozen=True)
class Knn(LayerEvaluator):
    """How often the nearest training samples have the class of a test sample."""

    labels = True

    k: fields.PositiveCount = 200
    temperature: fields.Positive = 0.1
    layer: Layer = "h"
    where: Where = "server"
    key: str = "knn"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The accuracy and the number of samples in the bank, of the server or over clients."""
        bank = f"{self.key}_bank"
        if self.where == "client":
            return name_summary(self.key, (f"client_{bank}",))
        return self.key, bank

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """Measure `knn`, and the number of samples in the bank as `knn_bank`."""
        _, labels = features(net, data, test=False, layer=self.layer)
        winners, y = self._vote(net, data)
        if not (len(labels) and len(y)):
            return {}
        right = int((winners == y).sum())
        return {self.key: right / len(y), f"{self.key}_bank": float(len(labels))}

    def confusion(self, net: Frozen, data: Shard) -> Tensor | None:
        """Count the test samples by true class (rows) and the class that their neighbours have."""
        winners, y = self._vote(net, data)
        if not (len(winners) and len(y)):
            return None
        cells = (y * data.classes + winners).cpu()
        counts = torch.bincount(cells, minlength=data.classes**2)
        return counts.reshape(data.classes, data.classes)

    def _vote(self, net: Frozen, data: Shard) -> Voted:
        """Predict the class of every test sample, once for a network and data."""
        known = _known.setdefault(net, WeakKeyDictionary()).setdefault(data, {})
        if self not in known:
            bank, labels = features(net, data, test=False, layer=self.layer)
            queries, y = features(net, data, test=True, layer=self.layer)
            winners = y[:0]
            if len(labels) and len(y):
                winners = vote(bank, labels, queries, data.classes, self.k, self.temperature)
            known[self] = winners, y
        return known[self]

    def summarise(self, scores: Scores) -> Mapping[str, float]:
        """Report mean, spread and worst decile over the clients, and the mean size of a bank."""
        bank = f"{self.key}_bank"
        return summarise_clients(scores, self.key, {f"client_{bank}": bank})
