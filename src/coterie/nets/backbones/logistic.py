"""Logistic regression: the classifier straight on the inputs, with `net.projection = 0`.

h = flatten(x);   a supervised network is then softmax(W h + b)

Two classes begin as the halves of one logit, -s/2 and s/2, and stay so: a step moves s twice as far
as it moves each of them, so that a published rate for one logit is to be halved.
"""

import math

from torch import Tensor, nn

from coterie.core.settings import NetSettings
from coterie.nets.build import Backbone, check_no_first_norm, check_no_norm


class Identity(Backbone):
    """The inputs themselves as representation."""

    one_logit = True

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.width = entries
        self.flatten = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, entries)."""
        h: Tensor = self.flatten(x)
        return h


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """Build it for samples of any shape."""
    check_no_first_norm(settings)
    check_no_norm(settings)
    return Identity(math.prod(shape))
