"""ResNet-18: basic blocks [2, 2, 2, 2] from width 64; h has 512 entries.

With the `cifar` stem it has 11,168,832 parameters.
"""

from functools import partial

from coterie.nets.resnet import build_resnet

build = partial(build_resnet, blocks=(2, 2, 2, 2), first=64)
