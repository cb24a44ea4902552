"""What `Method.nets` is given to build networks with."""

from dataclasses import dataclass, replace
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.kit.objective import Objective
from coterie.nets import weights
from coterie.nets.build import Own, make_backbone
from coterie.nets.heads import Network


@dataclass(frozen=True)
class Builder:
    """Builds a network for the run's objective; what there is to know of the data beside it."""

    objective: Objective
    settings: NetSettings  # the `[net]` table
    shape: tuple[int, ...]  # of a sample
    classes: int
    own: Own | None = None  # the backbone, where it is an object of this process

    def __call__(self, shape: tuple[int, ...] | None = None, **changes: Any) -> Network:
        """The network of `[net]` for samples; for others of `shape`, with some settings changed."""
        settings = replace(self.settings, **changes)
        backbone = make_backbone(settings, shape or self.shape, self.own)
        if not settings.weights:
            return self.objective.build(backbone, self.classes, settings.projection)
        if shape is not None or changes:
            raise ConfigError(
                f"net.weights = {settings.weights!r} is for a network that takes the samples "
                "themselves, and this method builds others: leave it empty"
            )
        # before the heads, which may copy the backbone
        heads = weights.lay_backbone(backbone, weights.read(settings), settings)
        net = self.objective.build(backbone, self.classes, settings.projection)
        weights.lay_heads(net, heads, settings)
        return net
