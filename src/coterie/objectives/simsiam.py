"""SimSiam (Chen and He 2021): predict the projection of the other view.

    loss = D(p1, sg z2) / 2 + D(p2, sg z1) / 2,     D = -cos,  z = projector(h),  p = predictor(z)

There are neither negatives nor a second network: the stop-gradient on z prevents collapse (the
SSFL paper's Eq. 1 has it on the predictor's side; its Algorithm 2 is right).
The projector has two layers, as for CIFAR in the original, the last norm without scale and shift.
"""

from dataclasses import dataclass
from typing import final

from coterie import kit
from coterie.kit import Backbone, Batch, Loss, Network, Objective, fields, mlp_head, self_supervised


@final
@dataclass(frozen=True)
class SimSiam(Objective):
    """Two views, a predictor and a stop-gradient. Takes no labels."""

    hidden: fields.Width = 2048  # width inside the projector
    bottleneck: fields.Width = 512  # width inside the predictor

    views = ("train", "train")
    warning = self_supervised.warn_of_collapse

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Build backbone, projector, predictor."""
        width = self_supervised.require_projection("simsiam", projection)
        projector = mlp_head((backbone.width, self.hidden, width), last_norm=True, affine=False)
        predictor = mlp_head((width, self.bottleneck, width))
        return Network(backbone, projector=projector, predictor=predictor)

    def loss(self, net: Network, batch: Batch) -> Loss:
        """Compute the symmetric distance of the batch."""
        one, two = net.each(batch.views)
        assert one.p is not None and two.p is not None
        total = kit.losses.symmetric_distance(one.p, two.p, one.z, two.z)
        return Loss(total, notes=self_supervised.geometry(one.z, two.z), outputs=(one, two))
