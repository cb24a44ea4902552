"""Top-1 accuracy and mean cross-entropy on the global test set."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch.nn import functional as F

from coterie.core.errors import ConfigError
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


def classify(net: Frozen, data: Shard) -> Mapping[str, float]:
    """Accuracy and loss of a model on the test samples of a body of data."""
    right, loss, count = 0, 0.0, 0
    for batch in data.sweep(test=True):
        logits = net(batch).logits
        if logits is None:
            raise ConfigError(
                "accuracy needs a classifier, and the objective has none: change evaluate.with"
            )
        right += int((logits.argmax(dim=1) == batch.y).sum())
        loss += float(F.cross_entropy(logits, batch.y, reduction="sum"))
        count += len(batch)
    return {"accuracy": right / count, "loss": loss / count}


@final
@dataclass(frozen=True)
class Accuracy(Evaluator):
    """The global model on the global test set."""

    where = "server"
    needs = ("classifier",)

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`accuracy` and `loss`."""
        return classify(net, data)
