"""ResNet-18: basic blocks [2, 2, 2, 2] from width 64; h has 512 entries.

With the `cifar` stem it has 11,168,832 parameters.
"""

from coterie.core.settings import NetSettings
from coterie.nets.build import Backbone
from coterie.nets.resnet import build_resnet


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """Build the network for images of `shape`."""
    return build_resnet(shape, settings, blocks=(2, 2, 2, 2), first=64)
