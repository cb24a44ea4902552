"""Every client's own model on the whole test set, also by whether the client has a class itself.

The model is the global one with what the client keeps of it: with `net.bn_buffers = "local"` its
own BatchNorm statistics. So MFCL(BN) is tested in the authors' code, where each client's own sensor
encodes the test images. Of a client that has w of K classes of equal size

    accuracy = w / K a + (1 - w / K) b

with a, the accuracy on test samples of classes that it has training samples of, and b, that on all
others. A classifier that has learned which client encoded, and not which class it sees, has b = 0.
Reported are means over the clients, each counting once. Real clients have no such test set: only a
simulation can do this, and data of sites are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch

from coterie.evaluate.shared.clients import Scores, name_summary, summarise_clients
from coterie.kit import Evaluator, Frozen, Shard, fields


@final
@dataclass(frozen=True)
class OwnSensors(Evaluator):
    """How often clients' own models are right on the whole test set."""

    needs = ("classifier",)
    labels = True
    where = "client"
    all_tests = True

    every: fields.PositiveCount = 1  # take every n-th test sample of a batch of 256
    key: str = "own_sensors"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The accuracy over clients, and its parts."""
        return name_summary(self.key, self._averages())

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """Measure the accuracy, that on classes the client holds (a), and on others (b)."""
        held = torch.unique(data.labels)
        right, holds = list[torch.Tensor](), list[torch.Tensor]()
        for batch in data.sweep(test=True):
            x, y = batch.x[:: self.every], batch.y[:: self.every]
            logits = net(x).logits
            assert logits is not None  # `needs` is checked before a run
            right.append(logits.argmax(dim=1) == y)
            holds.append(torch.isin(y, held))
        if not right:
            return {}
        correct, inside = torch.cat(right).double(), torch.cat(holds)
        metrics = {
            self.key: float(correct.mean()),
            f"{self.key}_from_held": float((correct * inside).mean()),
        }
        for name, rows in (("held", inside), ("other", ~inside)):
            if bool(rows.any()):
                metrics[f"{self.key}_{name}"] = float(correct[rows].mean())
        return metrics

    def summarise(self, scores: Scores) -> Mapping[str, float]:
        """Report mean, spread and worst decile of the accuracy, and means of its parts."""
        return summarise_clients(scores, self.key, self._averages())

    def _averages(self) -> dict[str, str]:
        parts = [f"{self.key}_{name}" for name in ("held", "other", "from_held")]
        return {f"client_{name}_mean": name for name in parts}
