"""ResNet-8: one basic block in each of three stages from width 16, for CPUs; h has 64 entries.

With the `cifar` stem and three channels it has 77,392 parameters.
"""

from coterie.core.settings import NetSettings
from coterie.nets.build import Backbone
from coterie.nets.resnet import build_resnet


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """Build the network for images of `shape`."""
    return build_resnet(shape, settings, blocks=(1, 1, 1), first=16)
