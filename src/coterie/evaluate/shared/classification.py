"""What a classifier predicts on test data, and measures of it beside the accuracy."""

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from coterie.kit import Frozen, Shard

Predictions = list[tuple[Tensor, Tensor]]  # logits and labels, batch by batch

# A confusion matrix is of the same predictions; both keys are new in every evaluation.
_known: WeakKeyDictionary[Frozen, WeakKeyDictionary[Shard, Predictions]] = WeakKeyDictionary()


def predict(net: Frozen, data: Shard) -> Predictions:
    """Compute the logits of all test samples, once for a network and data."""
    known = _known.setdefault(net, WeakKeyDictionary())
    if data not in known:
        known[data] = [(_read_logits(net, batch.x), batch.y) for batch in data.sweep(test=True)]
    return known[data]


def count_confusion(predictions: Predictions, classes: int) -> Tensor:
    """Count the samples by true class (rows) and predicted class (columns)."""
    matrix = torch.zeros(classes * classes, dtype=torch.int64)
    for logits, y in predictions:
        cells = y * classes + logits.argmax(dim=1)
        matrix += torch.bincount(cells.cpu(), minlength=classes * classes)
    return matrix.reshape(classes, classes)


def balance(confusion: Tensor) -> float:
    """Compute the mean recall over the classes that have samples."""
    totals = confusion.sum(dim=1).double()
    recalls = confusion.diagonal()[totals > 0] / totals[totals > 0]
    return float(recalls.mean())


def measure_auroc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Compute the area under the ROC curve; None where one of the two classes is missing.

    It is the chance that a positive sample has a higher score than a negative one, where equal
    scores count half: (sum of the positive ranks - m (m + 1) / 2) / (m n), with mean ranks of ties.
    """
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not (positives and negatives):
        return None
    if not np.isfinite(scores).all():
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    doubled = 2 * np.cumsum(counts) - counts + 1  # twice the mean rank, a whole number
    above = int(doubled[places][positive].sum()) - positives * (positives + 1)
    return above / (2 * positives * negatives)


def measure_auroc_of(predictions: Predictions) -> float | None:
    """Compute the area under the ROC curve for the second of two classes."""
    logits, y = (torch.cat(column).cpu() for column in zip(*predictions, strict=True))
    scores = logits.double()
    return measure_auroc((scores[:, 1] - scores[:, 0]).numpy(), (y == 1).numpy())


def _read_logits(net: Frozen, x: Tensor) -> Tensor:
    logits = net(x).logits
    assert logits is not None  # `needs` is checked before a run
    return logits
