"""A small convolutional network for signals (channels, time), such as ECG or accelerometers.

    Conv(c, 32, 9) N ReLU MaxPool2 - Conv(32, 64, 9) N ReLU MaxPool2 - Conv(64, 128, 9) N ReLU

and the mean over time. N is what `net.norm` says. Convolutions keep the length and pools round it
up, so that a signal may be as short as one point.
"""

import torch
from torch import Tensor, nn

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.nets.build import Backbone, check_no_first_norm
from coterie.nets.norm import Norm

_CHANNELS = (32, 64, 128)
_TAPS = 9
_SIGNAL_AXES = 2


class SignalCNN(Backbone):
    """A network whose representation h has 128 entries."""

    width = _CHANNELS[-1]

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for after in _CHANNELS:
            bias = norm.kind == "none"  # a norm would take it away again
            layers.append(nn.Conv1d(before, after, _TAPS, padding=_TAPS // 2, bias=bias))
            layers += [norm.make_1d(after), nn.ReLU(), nn.MaxPool1d(2, ceil_mode=True)]
            before = after
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, time) -> (n, 128)."""
        return torch.mean(self.layers(x), dim=2)


def build(shape: tuple[int, ...], settings: NetSettings) -> Backbone:
    """Build the network for signals of `shape`; reject other samples."""
    check_no_first_norm(settings)
    if len(shape) != _SIGNAL_AXES:
        raise ConfigError(
            f"net.backbone = 'conv1d' takes signals (channels, time), the data has samples of "
            f"shape {shape}; try net.backbone = 'mlp'"
        )
    return SignalCNN(shape[0], Norm.of(settings))
