"""What `Method.nets` is given to build networks with."""

from dataclasses import dataclass, replace
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.kit.objective import Objective
from coterie.nets import weights
from coterie.nets.build import Backbone, Own, make_backbone
from coterie.nets.heads import Network, make_unit


@dataclass(frozen=True)
class Builder:
    """Builds a network for the run's objective; what there is to know of the data beside it."""

    objective: Objective
    settings: NetSettings  # the `[net]` table
    shape: tuple[int, ...]  # of a sample
    classes: int
    own: Own | None = None  # the backbone, where it is an object of this process
    own_sensor: Own | None = None  # that of MFCL, where it is an object of this process

    def __call__(self, shape: tuple[int, ...] | None = None, **changes: Any) -> Network:
        """The network of `[net]` for samples; for others of `shape`, with some settings changed."""
        settings = replace(self.settings, **changes)
        backbone = make_backbone(settings, shape or self.shape, self.own)
        if not settings.weights:
            return self._build(backbone, settings)
        if shape is not None or changes:
            raise ConfigError(
                f"net.weights = {settings.weights!r} is for a network that takes the samples "
                "themselves, and this method builds others: leave it empty"
            )
        # before the heads, which may copy the backbone
        heads = weights.lay_backbone(backbone, weights.read(settings), settings)
        net = self._build(backbone, settings)
        weights.lay_heads(net, heads, settings)
        return net

    def _build(self, backbone: Backbone, settings: NetSettings) -> Network:
        """Let the objective put its heads on a backbone."""
        net = self.objective.build(backbone, self.classes, settings.projection)
        if settings.unit_projection:
            make_unit(net)
        return net
