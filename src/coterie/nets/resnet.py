"""Residual networks (He et al., CVPR 2016), as the papers use them on small images.

The stem is `cifar` (a 3 x 3 convolution with stride 1, no pooling), `imagenet` (7 x 7 with
stride 2, then max-pooling) or `none`: the blocks then take the input itself, which may be another
network's representation. Convolutions are initialised with Kaiming's normal distribution over their
fan-out, normalisation layers with weight 1 and bias 0. Convolutions without a norm have biases.
`net.norm_first` replaces the norms after the first two convolutions, the stem's and the first of
the first block (the MFCL paper, appendix D.3); all others are as `net.norm` says. Where kernels are
on, a convolution is one call with the normalisation, sum and ReLU behind it.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.settings import NetSettings
from coterie.native.residual import forward_chain, forward_pair, is_on
from coterie.nets.build import Backbone, Shape, check_images
from coterie.nets.norm import Norm

_SMALLEST = {"cifar": 4, "imagenet": 32, "none": 4}


def convolution(before: int, after: int, size: int, stride: int, norm: Norm) -> nn.Sequential:
    """Make a convolution with padding and stride, followed by its normalisation."""
    bias = norm.kind == "none"
    layer = nn.Conv2d(before, after, size, stride=stride, padding=size // 2, bias=bias)
    return nn.Sequential(layer, norm.make_2d(after))


class Block(nn.Module):
    """y = ReLU(F(x) + x), with a 1 x 1 convolution on x where the shape changes."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's output."""
        if not is_on(x):
            return F.relu(self.body(x) + self.shortcut(x))
        plain = isinstance(self.shortcut, nn.Identity)
        shortcut = self.shortcut(x) if plain else forward_pair(self.shortcut, x, relu=False)
        return forward_chain(self.body, x, shortcut)


def make_block(before: int, width: int, stride: int, norm: Norm, first: Norm, deep: bool) -> Block:
    """Make a block of two 3 x 3 convolutions, or if `deep` of 1 x 1, 3 x 3 and 1 x 1.

    `first` is the norm of the first convolution.
    """
    after = 4 * width if deep else width
    if deep:
        narrow = convolution(before, width, 1, 1, first)
        middle = convolution(width, width, 3, stride, norm)
        widen = convolution(width, after, 1, 1, norm)
        body = nn.Sequential(narrow, nn.ReLU(), middle, nn.ReLU(), widen)
    else:
        begin = convolution(before, width, 3, stride, first)
        body = nn.Sequential(begin, nn.ReLU(), convolution(width, after, 3, 1, norm))
    if before == after and stride == 1:
        return Block(body, nn.Identity())
    return Block(body, convolution(before, after, 1, stride, norm))


class ResNet(Backbone):
    """A stem, stages of blocks that halve the image and double the width, a global average."""

    def __init__(
        self, channels: int, blocks: Sequence[int], first: int, deep: bool, settings: NetSettings
    ) -> None:
        super().__init__()
        norm = Norm.of(settings)
        begin = replace(norm, kind=settings.norm_first or norm.kind)
        self.stem: nn.Module = nn.Identity()
        if settings.stem == "cifar":
            self.stem = nn.Sequential(convolution(channels, first, 3, 1, begin), nn.ReLU())
        elif settings.stem == "imagenet":
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            self.stem = nn.Sequential(convolution(channels, first, 7, 2, begin), nn.ReLU(), pool)
        before, stages = channels if settings.stem == "none" else first, []
        for number, count in enumerate(blocks):
            width = first * 2**number
            stage = []
            for position in range(count):
                stride = 2 if number > 0 and position == 0 else 1
                first_norm = begin if number == position == 0 else norm
                stage.append(make_block(before, width, stride, norm, first_norm, deep))
                before = 4 * width if deep else width
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.width = before
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, width)."""
        x = forward_chain(self.stem, x) if is_on(x) else self.stem(x)
        return torch.mean(self.stages(x), dim=(2, 3))


def build_resnet(
    shape: Shape, settings: NetSettings, *, blocks: Sequence[int], first: int, deep: bool = False
) -> ResNet:
    """Build a residual network for images of `shape`; reject other samples and small images."""
    taker = f"net.backbone = {settings.backbone!r} with net.stem = {settings.stem!r}"
    check_images(shape, _SMALLEST[settings.stem], taker)
    return ResNet(shape[0], blocks, first, deep, settings)
