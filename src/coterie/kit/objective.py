"""What one network minimises on one batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.nets.build import Backbone
from coterie.nets.heads import Network, Outputs


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss to descend, and its parts for the record."""

    total: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, Tensor] = field(default_factory=dict)  # recorded, not descended
    outputs: tuple[Outputs, ...] = ()  # of every view, where a method may want them

    @classmethod
    def sum(cls, terms: Mapping[str, Tensor], notes: Mapping[str, Tensor] | None = None) -> "Loss":
        """The sum of named terms."""
        first, *rest = terms.values()
        return cls(sum(rest, first), dict(terms), dict(notes or {}))


class Objective(ABC):
    """A loss with the heads it needs. Its fields are its hyper-parameters."""

    views: ClassVar[tuple[str, ...]] = ("train",)  # the augmentation of each view
    labels: ClassVar[bool] = False  # whether its loss reads `batch.y`

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `ConfigError` where samples of this shape do not go with this objective."""

    @property
    def private(self) -> tuple[str, ...]:
        """The prefixes of names that never leave a client."""
        return ()

    @abstractmethod
    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Put this objective's heads on a backbone."""

    @abstractmethod
    def loss(self, net: Network, batch: Batch) -> Loss:
        """The loss on a batch; works for any batch of two or more."""

    def after_step(self, net: Network, progress: float) -> None:
        """Called after every optimiser step; `progress` runs from 0 to 1 over the whole stage."""

    def after_load(self, net: Network, first: bool) -> None:
        """Called when weights were laid in; `first`: the client has no private part yet."""

    def after_average(self, weights: Tensors) -> Tensors:
        """Called on the server with every new average of the network's weights."""
        return weights

    def warning(self, metrics: Mapping[str, float]) -> str | None:
        """What the user should know of a round's metrics; said once in a run."""
        return None
