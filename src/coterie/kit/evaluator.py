"""Evaluators: what is measured on a model, and where."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from coterie.core.task import ClientId
from coterie.kit.context import Shard
from coterie.kit.pool import Frozen


class Evaluator(ABC):
    """A measurement on the server (the global data) or on every client (its own data).

    Measurements that take rounds of their own are `FederatedEvaluator`s.
    """

    where: ClassVar[Literal["server", "client"]] = "server"
    needs: ClassVar[tuple[str, ...]] = ()  # heads that the network must have

    @abstractmethod
    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """The metrics of one model on one body of data."""

    def summarise(self, found: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        """For evaluators on clients: the federation's metrics from every client's."""
        return {}
