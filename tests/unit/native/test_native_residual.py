"""Convolutions and batch normalisation of residual networks, against torch in double precision."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_reference import needs_kernels, plain_loops, variant
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core import seeds
from coterie.core.settings import NetSettings
from coterie.native.batch_norm import normalise, takes_norm
from coterie.native.residual import forward_chain
from coterie.native.switch import kernels
from coterie.native.winograd import convolve, takes_layer
from coterie.nets.build import make_backbone

__all__ = ["variant"]  # a fixture

pytestmark = [needs_kernels, pytest.mark.usefixtures("variant")]

NEAR = {torch.float32: 3e-5, torch.float64: 1e-12}  # of the largest entry

# samples, inputs, outputs, rows, columns
SHAPES = [(3, 16, 32, 8, 8), (1, 32, 16, 1, 1), (2, 16, 16, 5, 7), (50, 48, 16, 4, 4)]


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Return whether no entry is further off than rounding explains."""
    largest = expected.double().abs().max().clamp(min=1e-30)
    apart = (found.double() - expected.double()).abs().max()
    return bool(apart <= NEAR[found.dtype] * largest)


def make_layer(inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> nn.Conv2d:
    """Make a convolution that the kernel takes."""
    with seeds.scoped(5):
        return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False).to(dtype)


def make_norm(channels: int, dtype: torch.dtype = torch.float32) -> nn.BatchNorm2d:
    """Make a normalisation whose parameters and statistics are all different."""
    norm = nn.BatchNorm2d(channels).to(dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(norm, name).copy_(torch.rand(channels, generator=generator) + 0.5)
    return norm


def draw(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def slopes(compute: Callable[..., Tensor], upstream: Tensor, *leaves: Tensor) -> list[Tensor]:
    """Return the result and its gradients."""
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    y = compute(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_convolution_and_its_gradients_are_torchs(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    samples, inputs, outputs, rows, columns = shape
    layer = make_layer(inputs, outputs, dtype)
    assert takes_layer(layer)
    x = draw(samples, inputs, rows, columns, dtype=dtype)
    upstream = draw(samples, outputs, rows, columns, seed=2, dtype=dtype)
    y = convolve(x.requires_grad_(), layer)
    found = [y.detach(), *torch.autograd.grad(y, (x, layer.weight), upstream)]
    given = (upstream.double(), x.double(), layer.weight.double())
    expected = slopes(lambda x, w: F.conv2d(x, w, padding=1), *given)
    assert all(is_close(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_convolution_is_that_of_its_plain_loop(shape: tuple[int, ...]) -> None:
    samples, inputs, outputs, rows, columns = shape
    layer, x = make_layer(inputs, outputs), draw(samples, inputs, rows, columns).requires_grad_()
    upstream = draw(samples, outputs, rows, columns, seed=2)

    def work() -> list[Tensor]:
        y = convolve(x, layer)
        return [y.detach(), *torch.autograd.grad(y, (x, layer.weight), upstream)]

    found = work()
    with plain_loops():
        expected = work()
    assert all(is_close(one, other) for one, other in zip(found, expected, strict=True))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 13), st.data())
def test_convolutions_of_any_shape(
    samples: int, inputs: int, outputs: int, rows: int, data: st.DataObject
) -> None:
    columns = data.draw(st.integers(1, 13))
    layer = make_layer(16 * inputs, 16 * outputs)
    x = draw(samples, 16 * inputs, rows, columns)
    with torch.no_grad():
        found = convolve(x, layer)
    assert is_close(found, F.conv2d(x.double(), layer.weight.double(), padding=1))


def test_what_a_sample_gives_does_not_depend_on_the_others() -> None:
    layer, x = make_layer(16, 16), draw(200, 16, 4, 4)
    x[7] = float("nan")
    with torch.no_grad():
        together, alone = convolve(x, layer), convolve(x[100:101], layer)
    assert torch.equal(together[100:101], alone)
    assert not together[7].isfinite().any() and together[:7].isfinite().all()


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("with_shortcut", [True, False])
def test_normalisation_with_sum_and_relu_is_torchs(relu: bool, with_shortcut: bool) -> None:
    x, upstream = draw(6, 32, 5, 3) + 40, draw(6, 32, 5, 3, seed=2)
    shortcut = draw(6, 32, 5, 3, seed=3)
    ours, theirs = make_norm(32), make_norm(32, torch.float64)

    def compute(norm: nn.BatchNorm2d, kernel: bool) -> list[Tensor]:
        dtype = norm.weight.dtype
        leaves = [one.to(dtype).requires_grad_() for one in (x, shortcut)]
        if kernel:
            y = normalise(leaves[0], norm, relu, leaves[1] if with_shortcut else None)
        else:
            y = norm(leaves[0]) + (leaves[1] if with_shortcut else 0.0)
            y = F.relu(y) if relu else y
        leaves = [leaves[0], norm.weight, norm.bias, *(leaves[1:] if with_shortcut else [])]
        found = torch.autograd.grad(y, leaves, upstream.to(dtype))
        return [y.detach(), *found, *norm.buffers()]

    for one, other in zip(compute(ours, True), compute(theirs, False), strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_normalisation_by_fixed_statistics_is_torchs() -> None:
    x, norm = draw(6, 16, 5, 3), make_norm(16).eval()
    assert not takes_norm(norm, x)  # with a graph torch does it
    with torch.no_grad():
        assert takes_norm(norm, x)
        assert torch.allclose(normalise(x, norm, relu=True), F.relu(norm(x)), atol=1e-6)


def test_gradients_are_right_by_finite_differences() -> None:
    layer, norm = make_layer(16, 16, torch.float64), make_norm(16, torch.float64)
    chain = nn.Sequential(nn.Sequential(layer, norm), nn.ReLU(), nn.Sequential(layer, norm))
    x = draw(2, 16, 3, 2, dtype=torch.float64).requires_grad_()
    with kernels(True):
        assert torch.autograd.gradcheck(lambda x: forward_chain(chain, x, x).sum(dim=1), (x,))
        assert torch.autograd.gradgradcheck(lambda x: forward_chain(chain, x, x).sum(), (x,))


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
@pytest.mark.parametrize("norm", ["bn", "gn", "pn", "none"])
def test_a_network_learns_the_same_with_and_without(name: str, norm: str) -> None:
    with seeds.scoped(3):
        net = make_backbone(NetSettings(name, norm=norm), (3, 8, 8)).double()  # type: ignore[arg-type]
    twin, x = copy.deepcopy(net), draw(4, 3, 8, 8, dtype=torch.float64)
    with kernels(True):
        found = slopes_of(net, x)
    for one, other in zip(found, slopes_of(twin, x), strict=True):
        assert (one - other).abs().max() <= 1e-8 * other.abs().max().clamp(min=1.0)


def slopes_of(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the outputs, the gradients of all parameters and the buffers after a step."""
    y = net(x)
    found = torch.autograd.grad((y * torch.arange(y.shape[1])).sum(), list(net.parameters()))
    return [y.detach(), *found, *(one.double() for one in net.buffers())]
