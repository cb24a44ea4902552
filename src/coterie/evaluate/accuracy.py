"""Top-1 accuracy, mean cross-entropy and balanced accuracy of the classifier on test data.

The balanced accuracy is the mean recall over the classes that have test samples. With two classes
there is the area under the ROC curve too, where both have test samples.

On the server: the global model on the global test set. On clients (`where = "client"`): every
client's personal model, where it has one, on its own part of the test set, which was dealt by the
clients' shares of each class's training samples. Reported over clients, each counting once: the
mean, the standard deviation, and the mean of the worst tenth (at least one client); of the other
metrics the mean over the clients that have them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.nn import functional as F

from coterie.evaluate.shared.classification import (
    balance,
    count_confusion,
    measure_auroc_of,
    predict,
)
from coterie.evaluate.shared.clients import Scores, name_summary, summarise_clients
from coterie.kit import Evaluator, Frozen, Shard
from coterie.kit.evaluator import Where

NAME = "accuracy"
_OTHERS = ("loss", "balanced_accuracy", "auroc")  # metrics beside the accuracy
_TWO = 2  # classes of an ROC curve


@final
@dataclass(frozen=True)
class Accuracy(Evaluator):
    """How often the classifier is right."""

    needs = ("classifier",)
    labels = True

    where: Where = "server"
    key: str = NAME

    @property
    def loss(self) -> str:
        """The name of the second metric."""
        return self._name("loss")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The accuracy and the others, of the server or over clients."""
        if self.where == "client":
            return name_summary(self.key, self._averages())
        return (self.key, *map(self._name, _OTHERS))

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """Measure `accuracy`, `loss` and `balanced_accuracy`; with two classes also `auroc`."""
        right, loss, count = 0, 0.0, 0
        predictions = predict(net, data)
        for logits, y in predictions:
            right += int((logits.argmax(dim=1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            count += len(y)
        if not count:
            return {}
        metrics = {self.key: right / count, self.loss: loss / count}
        metrics[self._name("balanced_accuracy")] = balance(self.confusion(net, data))
        if data.classes == _TWO and (area := measure_auroc_of(predictions)) is not None:
            metrics[self._name("auroc")] = area
        return metrics

    def confusion(self, net: Frozen, data: Shard) -> Tensor:
        """Count the test samples by true class (rows) and predicted class (columns)."""
        return count_confusion(predict(net, data), data.classes)

    def summarise(self, scores: Scores) -> Mapping[str, float]:
        """Report mean, spread and worst decile of the accuracy, and the mean of other metrics."""
        return summarise_clients(scores, self.key, self._averages())

    def _averages(self) -> dict[str, str]:
        return {f"client_{name}_mean": name for name in map(self._name, _OTHERS)}

    def _name(self, metric: str) -> str:
        return metric if self.key == NAME else f"{self.key}_{metric}"
