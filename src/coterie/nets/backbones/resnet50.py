"""ResNet-50: bottleneck blocks [3, 4, 6, 3] from width 64; h has 2,048 entries.

With the `cifar` stem it has 23,500,352 parameters.
"""

from coterie.core.settings import NetSettings
from coterie.nets.build import Backbone
from coterie.nets.resnet import build_resnet


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """Build the network for images of `shape`."""
    return build_resnet(shape, settings, blocks=(3, 4, 6, 3), first=64, deep=True)
