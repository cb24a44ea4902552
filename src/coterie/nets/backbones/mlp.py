"""A perceptron with two hidden layers, for vectors and small images.

flatten - FC(., 200) N ReLU - FC(200, 200) N ReLU,   N as `net.norm` says
"""

import math

from torch import Tensor, nn

from coterie.core.settings import NetSettings
from coterie.nets.build import Backbone, check_no_first_norm
from coterie.nets.norm import Norm

_HIDDEN = 200


class MLP(Backbone):
    """A perceptron whose representation h has 200 entries."""

    width = _HIDDEN

    def __init__(self, entries: int, norm: Norm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(entries, _HIDDEN),
            norm.make_1d(_HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            norm.make_1d(_HIDDEN),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, 200)."""
        h: Tensor = self.layers(x)
        return h


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """Build the network for samples of any shape."""
    check_no_first_norm(settings)
    return MLP(math.prod(shape), Norm.of(settings))
