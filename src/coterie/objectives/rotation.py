"""Rotation (Gidaris, Singh, Komodakis 2018): predict by how many quarters an image was rotated.

    loss = CE(predictor(z), a),     z = projector(h) of the image rotated by a random quarters

Orchestra uses it against degenerate solutions; it also learns by itself. The projector has two
layers, its last norm has no scale and shift, and the predictor is one linear layer on z.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import kit
from coterie.kit import Backbone, Batch, Loss, Network, Objective, fields, mlp_head, self_supervised

TURNS = 4
_IMAGE_AXES = 3


def turn(images: Tensor, quarters: Tensor) -> Tensor:
    """Rotate each image counter-clockwise by its own number of quarters."""
    turned = images.clone()
    for number in range(1, TURNS):
        chosen = quarters == number
        turned[chosen] = torch.rot90(images[chosen], number, dims=(2, 3))
    return turned


@final
@dataclass(frozen=True)
class Rotation(Objective):
    """Prediction of the rotation of an image. Takes no labels."""

    hidden: fields.OptionalWidth = 0  # width inside the projector; 0: the backbone's

    warning = self_supervised.warn_of_collapse

    def check(self, shape: tuple[int, ...]) -> None:
        """Reject images that are not square: rotation would change their shape."""
        if len(shape) != _IMAGE_AXES or shape[1] != shape[2]:
            raise kit.ConfigError(
                f"objective.name = 'rotation' takes square images, the data has samples of shape "
                f"{shape}"
            )

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Build backbone, projector, and the predictor of the rotation."""
        width = self_supervised.require_projection("rotation", projection)
        hidden = self.hidden or backbone.width
        projector = mlp_head((backbone.width, hidden, width), last_norm=True, affine=False)
        return Network(backbone, projector=projector, predictor=nn.Linear(width, TURNS))

    def loss(self, net: Network, batch: Batch) -> Loss:
        """Compute the cross-entropy of random rotations of the batch."""
        quarters = torch.randint(TURNS, (len(batch),)).to(batch.x.device)
        outputs = net(turn(batch.x, quarters))
        right = (outputs.p.argmax(dim=1) == quarters).float().mean()
        total = F.cross_entropy(outputs.p, quarters)
        return Loss(total, notes={"turns_right": right}, outputs=(outputs,))
