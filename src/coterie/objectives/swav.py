"""SwAV (Caron et al. 2020): predict the prototypes that the other view is assigned to.

    loss = -1/2 ( <q2, log softmax(C z1 / T)> + <q1, log softmax(C z2 / T)> ),     |z| = |c_k| = 1

The codes q are computed per batch by Sinkhorn's algorithm, which uses all prototypes equally; no
gradient flows through them. In a federation the prototypes are averaged like the rest, and the mean
of unit vectors is shorter: they are normalised after averaging and before every forward pass.
Unlike the paper: two views of full size, no queue, prototypes trained from the first step.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.nn import functional as F

from coterie import kit
from coterie.kit import Backbone, Batch, Loss, Network, Objective, fields, mlp_head, self_supervised

_WEIGHT = "prototypes.weight"


@final
@dataclass(frozen=True)
class SwAV(Objective):
    """Swapped prediction of cluster assignments. Takes no labels."""

    prototypes: fields.Width = 512
    temperature: fields.Positive = 0.1
    epsilon: fields.Positive = 0.05  # of Sinkhorn's algorithm
    iterations: fields.PositiveCount = 3
    hidden: fields.OptionalWidth = 0  # width inside the projector; 0: the backbone's

    views = ("train", "train")
    warning = self_supervised.warn_of_collapse

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Build backbone, projector, prototypes."""
        width = self_supervised.require_projection("swav", projection)
        layer = nn.Linear(width, self.prototypes, bias=False)
        with torch.no_grad():
            layer.weight.copy_(F.normalize(layer.weight, dim=1))
        projector = mlp_head((backbone.width, self.hidden or backbone.width, width))
        return Network(backbone, projector=projector, prototypes=layer)

    def loss(self, net: Network, batch: Batch) -> Loss:
        """Compute the swapped prediction loss of the batch."""
        assert isinstance(net.prototypes, nn.Linear)
        with torch.no_grad():
            net.prototypes.weight.copy_(F.normalize(net.prototypes.weight, dim=1))
        z1, z2 = (outputs.z for outputs in net.each(batch.views))
        scores1, scores2 = (net.prototypes(F.normalize(z, dim=1)) for z in (z1, z2))
        total = kit.losses.swapped_prediction(
            scores1, scores2, self.temperature, self.epsilon, self.iterations
        )
        return Loss(total, notes=self_supervised.geometry(z1, z2))

    def after_average(self, weights: kit.Tensors) -> kit.Tensors:
        """Normalise the averaged prototypes to length one."""
        return {**weights, _WEIGHT: F.normalize(weights[_WEIGHT], dim=1)}
