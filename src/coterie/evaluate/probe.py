"""A linear classifier on frozen representations, trained centrally.

How it is trained is in `evaluate/shared/head.py`. On the server: the global model, the training set
and the global test set. On clients (`where = "client"`): every client's personal model where it has
one, tested on that client's test data, with the labels

    data = "own"   of its own training data, wherever the data are;
    data = "all"   of the whole training set, the protocol of personalised SSFL (He et al., 2021,
                   section 4). Real clients have no such set: only a simulation can do this, and
                   data of sites are refused. A client whose samples are shifted (noise, rotation,
                   style, other labels) sees the whole set that way.

`labels` is the share of the labels that is used: as many of every class, one at least. They are
drawn by the seed of the run and are the same in every round. z, behind the projector, is where the
MFCL paper's text puts its linear evaluation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from coterie.evaluate.shared.clients import Scores, name_summary, summarise_clients
from coterie.evaluate.shared.features import Layer, LayerEvaluator, features
from coterie.evaluate.shared.head import choose_balanced, count_right, fresh_head, train_head
from coterie.kit import Frozen, Shard, fields, seeds
from coterie.kit.evaluator import Where


@final
@dataclass(frozen=True)
class Probe(LayerEvaluator):
    """How well a linear classifier separates the classes."""

    labels: fields.PositiveShare = 1.0
    layer: Layer = "h"
    where: Where = "server"
    data: Literal["own", "all"] = "own"  # whose training data, on clients; the server has all
    key: str = "probe"

    @property
    def pools(self) -> bool:
        """Whether a client trains on the data of all clients."""
        return self.where == "client" and self.data == "all"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The accuracy and the number of labels, of the server or over clients."""
        labels = f"{self.key}_labels"
        if self.where == "client":
            return name_summary(self.key, (f"client_{labels}",))
        return self.key, labels

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """Measure `probe`, and the number of labels it used as `probe_labels`."""
        h, y = features(net, data, test=False, layer=self.layer)
        h_test, y_test = features(net, data, test=True, layer=self.layer)
        if not (len(y) and len(y_test)):
            return {}
        if self.labels < 1.0:
            rows = choose_balanced(y, self.labels, seed)
            h, y = h[rows], y[rows]
        draw = seeds.generator(seed, "probe/order")
        head = train_head(fresh_head(data.classes, h), h, y, draw)
        right = count_right(head, h_test, y_test)
        return {self.key: right / len(y_test), f"{self.key}_labels": float(len(y))}

    def summarise(self, scores: Scores) -> Mapping[str, float]:
        """Report mean, spread and worst decile over the clients, and the mean number of labels."""
        labels = f"{self.key}_labels"
        return summarise_clients(scores, self.key, {f"client_{labels}": labels})
