"""ResNet-50: bottleneck blocks [3, 4, 6, 3] from width 64; h has 2,048 entries.

With the `cifar` stem it has 23,500,352 parameters.
"""

from functools import partial

from coterie.nets.resnet import build_resnet

build = partial(build_resnet, blocks=(3, 4, 6, 3), first=64, deep=True)
