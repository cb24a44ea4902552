"""Top-1 accuracy and mean cross-entropy of the classifier on test data.

On the server: the global model on the global test set. On clients (`where = "client"`): every
client's personal model, where it has one, on its own part of the test set, which was dealt by the
clients' shares of each class's training samples. Reported over clients, each counting once: the
mean, the standard deviation, and the mean of the worst tenth (at least one client).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch.nn import functional as F

from coterie.evaluate.shared.clients import Scores, summarise_clients
from coterie.kit import Evaluator, Frozen, Shard
from coterie.kit.evaluator import Where

NAME = "accuracy"


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
        return "loss" if self.key == NAME else f"{self.key}_loss"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """Measure `accuracy` and `loss`."""
        right, loss, count = 0, 0.0, 0
        for batch in data.sweep(test=True):
            logits = net(batch).logits
            assert logits is not None  # `needs` is checked before a run
            right += int((logits.argmax(dim=1) == batch.y).sum())
            loss += float(F.cross_entropy(logits, batch.y, reduction="sum"))
            count += len(batch)
        return {self.key: right / count, self.loss: loss / count} if count else {}

    def summarise(self, scores: Scores) -> Mapping[str, float]:
        """Report mean, spread and worst decile of the accuracy, and the mean loss."""
        return summarise_clients(scores, self.key, {f"client_{self.loss}_mean": self.loss})
