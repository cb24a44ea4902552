"""The small CNN of MOON, FedProc and FedSSC.

    Conv(c, 6, 5) ReLU MaxPool2 - Conv(6, 16, 5) ReLU MaxPool2 - FC(., 120) ReLU - FC(120, 84) ReLU

At 3 x 32 x 32 it has 61,156 parameters, as published. It has no normalisation layer, so other
values of `net.norm` than the default and `none` are refused. Images below 20 pixels would be used
up by the unpadded convolutions, so there both are padded by two. With `net.kernel = "native"` each
convolution is done together with what follows it, by a kernel in C; without gradients the network
is one call.
"""

import torch
from torch import Tensor, nn

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.native import layers
from coterie.native.frozen_network import Chain, Row, links_of
from coterie.nets.build import Backbone, check_no_first_norm, check_no_norm

_PADDED_BELOW = 20
_SMALLEST = 4


class HalvingPool(nn.MaxPool2d):
    """Max-pooling over 2 x 2; without gradients by comparing rows and columns.

    That gives the same values ten times faster on a CPU: no position has to be remembered. A last
    row or column without a partner is left out, or stands for itself with `ceil_mode`.
    """

    def __init__(self, ceil_mode: bool = False) -> None:
        super().__init__(2, ceil_mode=ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, c, rows // 2, columns // 2)."""
        odd = any(side % 2 for side in x.shape[2:])
        if torch.is_grad_enabled() or (self.ceil_mode and odd):
            pooled: Tensor = super().forward(x)
            return pooled
        rows, columns = (side // 2 * 2 for side in x.shape[2:])
        flat = torch.maximum(x[:, :, :rows:2], x[:, :, 1:rows:2])
        return torch.maximum(flat[..., :columns:2], flat[..., 1:columns:2])


class SimpleCNN(Backbone):
    """h has 84 entries."""

    width = 84

    def __init__(self, channels: int, height: int, width: int, native: bool = False) -> None:
        super().__init__()
        self.in_lanes = native
        padding = 2 if min(height, width) < _PADDED_BELOW else 0
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            nn.ReLU(),
            HalvingPool(),
            nn.Conv2d(6, 16, 5, padding=padding),
            nn.ReLU(),
            HalvingPool(),
            nn.Flatten(),
        )
        rows, columns = (self._left(side, padding) for side in (height, width))
        self.top = nn.Sequential(
            nn.Linear(16 * rows * columns, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
        )

    @staticmethod
    def _left(side: int, padding: int) -> int:
        for _ in range(2):
            side = (side + 2 * padding - 4) // 2
        return side

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, 84)."""
        if not torch.is_grad_enabled() and (row := self.row(x)) is not None:
            return Chain(x.shape[1:], x.dtype, [row])(x)[0]
        h: Tensor = self.top(self._convolved(x))
        return h

    def row(self, x: Tensor) -> Row | None:
        """All layers, where the kernels are in use."""
        top = links_of(self.top) if self.in_lanes and layers.takes(x) else None
        return None if top is None else Row(self._convolutions(), [top])

    def _convolutions(self) -> list[nn.Conv2d]:
        return [layer for layer in self.features if isinstance(layer, nn.Conv2d)]

    def _convolved(self, x: Tensor) -> Tensor:
        if not (self.in_lanes and layers.takes(x)):
            features: Tensor = self.features(x)
            return features
        for layer in self._convolutions():
            assert layer.bias is not None
            x = layers.conv_relu_pool(x, layer.weight, layer.bias, int(layer.padding[0]))
        return x.flatten(1)


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """The network for images of `shape`."""
    check_no_first_norm(settings)
    check_no_norm(settings)
    if len(shape) != 3 or min(shape[1:]) < _SMALLEST:
        raise ConfigError(
            f"net.backbone = 'simple-cnn' takes images of at least {_SMALLEST} x {_SMALLEST} "
            f"pixels, the data has samples of shape {shape}; try net.backbone = 'mlp'"
        )
    return SimpleCNN(*shape, native=settings.kernel == "native")
