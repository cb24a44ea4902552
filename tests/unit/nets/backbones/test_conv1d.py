"""The network for signals: against plain loops, on every length, and what it refuses."""

import numpy as np
import pytest
import torch

from coterie.core import seeds
from coterie.core.batch import Batch
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings, NormKind
from coterie.data.augment_vectors import JitterScaleCrop
from coterie.nets.build import make_backbone
from coterie.nets.norm import paired
from coterie.objectives.simclr import SimCLR


def naive(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """One signal through the network without norms, loop by loop."""
    for number, layer in enumerate(("layers.0", "layers.4", "layers.8")):
        w, b = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        padded = np.pad(x, ((0, 0), (4, 4)))
        columns = [(w * padded[:, t : t + 9]).sum(axis=(1, 2)) + b for t in range(x.shape[1])]
        x = np.maximum(np.stack(columns, axis=1), 0.0)
        if number < 2:
            pairs = [x[:, t : t + 2].max(axis=1) for t in range(0, x.shape[1], 2)]
            x = np.stack(pairs, axis=1)
    return x.mean(axis=1)


@pytest.mark.parametrize("time", [1, 2, 7, 50])
def test_it_is_three_convolutions_two_pools_and_a_mean(time: int) -> None:
    net = make_backbone(NetSettings("conv1d", norm="none"), (2, time)).double().eval()
    x = torch.randn(3, 2, time, dtype=torch.float64)
    weights = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    with torch.no_grad():
        h = net(x).numpy()
    assert h.shape == (3, net.width) == (3, 128)
    for sample, expected in zip(x.numpy(), h, strict=True):
        np.testing.assert_allclose(naive(sample, weights), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", ["bn", "gn", "pn", "none"])
def test_every_norm_trains_on_short_and_long_signals(norm: NormKind) -> None:
    for time in (1, 3, 200):
        net = make_backbone(NetSettings("conv1d", norm=norm), (3, time))
        with paired(net, 2):
            net(torch.randn(4, 3, time)).square().sum().backward()
        grads = [parameter.grad for parameter in net.parameters()]
        assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)
        assert sum(name.endswith("bias") for name in net.state_dict()) == 3


@pytest.mark.parametrize("shape", [(12,), (3, 8, 8)])
def test_other_samples_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"'conv1d' takes signals \(channels, time\), the data"):
        make_backbone(NetSettings("conv1d"), shape)
    with pytest.raises(ConfigError, match=r"net\.norm_first = 'gn' is for residual networks"):
        make_backbone(NetSettings("conv1d", norm_first="gn"), (2, 9))


def test_it_learns_to_tell_signals_apart_by_two_views() -> None:
    x = torch.randn((16, 2, 24), generator=torch.Generator().manual_seed(0))
    rows, transform = torch.arange(16), JitterScaleCrop()
    with seeds.scoped(3):
        backbone = make_backbone(NetSettings("conv1d", norm="gn"), (2, 24))
        net = SimCLR(tau=0.2).build(backbone, classes=2, projection=8)
    descent = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for step in range(30):
        draws = (np.random.default_rng(2 * step + view) for view in (0, 1))
        views = tuple(transform(x, rows, transform.draw(16, draw)) for draw in draws)
        loss = SimCLR(tau=0.2).loss(net, Batch(views, rows, rows)).total
        descent.zero_grad()
        loss.backward()
        descent.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_the_network_for_images_sends_signals_here() -> None:
    for shape, other in (((3, 64), "conv1d"), ((9,), "mlp")):
        with pytest.raises(ConfigError, match=rf"'simple-cnn' .*; try net\.backbone = '{other}'"):
            make_backbone(NetSettings("simple-cnn"), shape)
