"""A batch of training samples, and the longer stretch of samples that it was cut from."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Consecutive batches prepared together, so that a reference network needs one forward pass."""

    views: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one client, with one tensor for each view that the objective asks for."""

    views: tuple[Tensor, ...]
    y: Tensor
    index: Tensor  # positions in the client's shard
    epoch: int = 0
    last: bool = True  # of its epoch; gradients are not accumulated across epochs
    progress: float = 0.0  # share of this client's local training that is already done
    plain: bool = False  # the first view is not augmented: it is the same in every epoch
    stretch: Stretch | None = None  # the stretch it is a slice of ...
    start: int = 0  # ... and the position of its first sample there

    @property
    def x(self) -> Tensor:
        """The first view."""
        return self.views[0]

    def __len__(self) -> int:
        return len(self.y)
