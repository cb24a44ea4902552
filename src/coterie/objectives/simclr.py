"""SimCLR (Chen et al. 2020): identify the other view of a sample among all views of a batch.

    loss = mean_i -log( e^{cos(z_i, z_j)/tau} / sum_{k != i} e^{cos(z_i, z_k)/tau} )

over the 2B views, where j is the other view of i. The negatives are those of one batch: their
number depends on `local.batch_size`, not on gradient accumulation.
"""

from dataclasses import dataclass
from typing import final

from coterie import kit
from coterie.kit import Backbone, Batch, Loss, Network, Objective, fields, mlp_head, self_supervised


@final
@dataclass(frozen=True)
class SimCLR(Objective):
    """Contrast of two views against the rest of the batch. Takes no labels."""

    tau: fields.Positive = 0.5
    hidden: fields.OptionalWidth = 0  # width inside the projector; 0: the backbone's
    layers: fields.Depth = 2  # of the projector

    views = ("train", "train")
    warning = self_supervised.warn_of_collapse

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Build backbone and projector."""
        width = self_supervised.require_projection("simclr", projection)
        hidden = [self.hidden or backbone.width] * (self.layers - 1)
        projector = mlp_head((backbone.width, *hidden, width), last_norm=True)
        return Network(backbone, projector=projector)

    def loss(self, net: Network, batch: Batch) -> Loss:
        """Compute NT-Xent over the batch."""
        one, two = net.each(batch.views)
        total = kit.losses.nt_xent(one.z, two.z, self.tau)
        return Loss(total, notes=self_supervised.geometry(one.z, two.z), outputs=(one, two))
