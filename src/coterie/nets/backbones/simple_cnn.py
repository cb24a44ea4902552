"""The small CNN of MOON, FedProc and FedSSC.

    Conv(c, 6, 5) ReLU MaxPool2 - Conv(6, 16, 5) ReLU MaxPool2 - FC(., 120) ReLU - FC(120, 84) ReLU

At 3 x 32 x 32 it has 61,156 parameters, as published. It has no normalisation layer, so other
values of `net.norm` than the default and `none` are refused. Images below 20 pixels would be used
up by the unpadded convolutions, so there both are padded by two. Where kernels are on, each
convolution is one call with what follows it; so is the whole network without gradients, and in
training where nothing is padded.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from coterie.core.settings import NetSettings
from coterie.native.frozen_network import OneCall
from coterie.native.layers import forward_fused
from coterie.native.switch import records_graph
from coterie.nets.build import Backbone, check_images, check_no_first_norm, check_no_norm

_PADDED_BELOW = 20
_SMALLEST = 4
_SIGNAL_AXES = 2


class HalvingPool(nn.MaxPool2d):
    """Max-pooling over 2 x 2; without gradients by comparing rows and columns.

    That gives the same values ten times faster on a CPU: no position has to be remembered. A last
    row or column without a partner is left out, or stands for itself with `ceil_mode`. A trace has
    plain max-pooling in either case, as its checker repeats it without gradients.
    """

    like_its_base = True  # to kernels

    def __init__(self, ceil_mode: bool = False) -> None:
        super().__init__(2, ceil_mode=ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, c, rows // 2, columns // 2)."""
        plain = torch.is_grad_enabled() or records_graph()
        if plain or (self.ceil_mode and any(side % 2 for side in x.shape[2:])):
            pooled: Tensor = super().forward(x)
            return pooled
        rows, columns = (side // 2 * 2 for side in x.shape[2:])
        flat = torch.maximum(x[:, :, :rows:2], x[:, :, 1:rows:2])
        return torch.maximum(flat[..., :columns:2], flat[..., 1:columns:2])


class SimpleCNN(Backbone, nn.Sequential):
    """h has 84 entries."""

    width = 84
    in_lanes = True
    like_its_base = True  # to kernels
    features: nn.Sequential
    top: nn.Sequential

    def __init__(self, channels: int, height: int, width: int) -> None:
        padding = 2 if min(height, width) < _PADDED_BELOW else 0
        features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            nn.ReLU(),
            HalvingPool(),
            nn.Conv2d(6, 16, 5, padding=padding),
            nn.ReLU(),
            HalvingPool(),
            nn.Flatten(),
        )
        rows, columns = (self._left(side, padding) for side in (height, width))
        top = nn.Sequential(
            nn.Linear(16 * rows * columns, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
        )
        super().__init__(OrderedDict(features=features, top=top))
        self._one_call = OneCall()

    @staticmethod
    def _left(side: int, padding: int) -> int:
        for _ in range(2):
            side = (side + 2 * padding - 4) // 2
        return side

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, 84)."""
        outputs = self._one_call([[self]], x)
        h: Tensor = self.top(forward_fused(self.features, x)) if outputs is None else outputs[0]
        return h


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """The network for images of `shape`."""
    check_no_first_norm(settings)
    check_no_norm(settings)
    other = "conv1d" if len(shape) == _SIGNAL_AXES else "mlp"
    remedy = f"; try net.backbone = {other!r}"
    check_images(shape, _SMALLEST, "net.backbone = 'simple-cnn'", remedy)
    return SimpleCNN(*shape)
