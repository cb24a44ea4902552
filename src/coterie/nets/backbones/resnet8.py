"""ResNet-8: one basic block in each of three stages from width 16, for CPUs; h has 64 entries.

With the `cifar` stem and three channels it has 77,392 parameters.
"""

from functools import partial

from coterie.nets.resnet import build_resnet

build = partial(build_resnet, blocks=(1, 1, 1), first=16)
