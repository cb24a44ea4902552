"""Batch: samples of one client, once per view."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Several consecutive batches, prepared together; a reference network takes them at once."""

    views: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one client, once per view that the objective asked for."""

    views: tuple[Tensor, ...]
    y: Tensor
    index: Tensor  # positions in the client's shard
    epoch: int = 0
    last: bool = True  # of its epoch: an accumulated step must not wait beyond it
    progress: float = 0.0  # the share of this client's local training done before it
    plain: bool = False  # the first view is what `sweep` gives: it is the same in every epoch
    stretch: Stretch | None = None  # what it was cut from ...
    start: int = 0  # ... and where in it it begins

    @property
    def x(self) -> Tensor:
        """The first view."""
        return self.views[0]

    def __len__(self) -> int:
        return len(self.y)
