"""Evaluators: what is measured on a model, and where."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from coterie.core.task import ClientId
from coterie.kit.context import Shard
from coterie.kit.networks import Frozen

Where = Literal["server", "client"]


class Evaluator(ABC):
    """A measurement on the server (the global data) or on every client (its own data).

    Its fields are its keys in an entry of `evaluate.with`. If it has a field `key: str`, the key of
    its entry is put there, and its metrics should carry it. Measurements that take rounds of their
    own are `FederatedEvaluator`s.
    """

    where: Where = "server"
    labels: bool | float = False
    """True, or the share of the labels that it uses, if it needs labels: it then sees labelled
    samples only, and is left out where there are none."""

    @property
    def headline(self) -> str:
        """The metric that says most of the model, as a run reports it; "" if it is not known."""
        key = str(getattr(self, "key", ""))
        return f"client_{key}_mean" if key and self.where == "client" else key

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that it may report; () if they are not known before a run.

        With them, a misspelt `evaluate.metric` is an error before the first round.
        """
        return ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The heads that the network must have; a constant in the class will do."""
        return ()

    @property
    def pools(self) -> bool:
        """On clients: whether it trains on the samples of all clients, and tests on its own.

        Only a simulation can do that; where the data are those of sites it is a configuration
        error. A constant in the class will do.
        """
        return False

    @property
    def all_tests(self) -> bool:
        """On clients: whether it tests on the whole test set; training samples are the client's.

        As with `pools`, only a simulation can do that. A constant in the class will do.
        """
        return False

    @abstractmethod
    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """The metrics of one model on one body of data; the seed is the same in every round."""

    def confusion(self, net: Frozen, data: Shard) -> Tensor | None:
        """The test samples by true class (rows) and predicted class; None if it counts none.

        It is called after `__call__`, with the same network and data.
        """
        return None

    def summarise(self, scores: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        """For evaluators on clients: the federation's metrics from every client's."""
        return {}

    def warning(self, metrics: Mapping[str, float]) -> str | None:
        """What the user should know of all metrics of an evaluation; said once in a run."""
        return None
