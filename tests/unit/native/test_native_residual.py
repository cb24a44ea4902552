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

import bfloat16
from coterie.core import seeds
from coterie.core.settings import NetSettings
from coterie.native.batch_norm import normalise, takes_norm
from coterie.native.library import loaded
from coterie.native.residual import forward_chain, is_on
from coterie.native.switch import bf16, kernels
from coterie.native.winograd import convolve, lay_out, takes_layer
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


def test_a_normalisation_without_parameters_or_of_another_type_is_left_to_torch() -> None:
    x = draw(6, 16, 5, 3)
    assert takes_norm(make_norm(16), x) and takes_norm(make_norm(16), x.bfloat16())
    assert not takes_norm(make_norm(16), x.double()) and not takes_norm(make_norm(16), x.half())
    assert not takes_norm(nn.BatchNorm2d(16, affine=False), x)


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


def normalise_in_bfloat16(
    norm: nn.BatchNorm2d, relu: bool, shortcut: Tensor | None, kernel: bool
) -> list[Tensor]:
    """Normalise numbers that are bfloat16; without the kernel by torch in float32."""
    x, upstream = draw(6, 32, 5, 3) + 4, draw(6, 32, 5, 3, seed=2).bfloat16()
    leaves = [
        one.bfloat16().requires_grad_()
        for one in (x, *([shortcut] if shortcut is not None else []))
    ]
    if kernel:
        y = normalise(leaves[0], norm, relu, *leaves[1:])
        assert y.dtype is torch.bfloat16
    else:
        y = norm(leaves[0].float()) + (leaves[1].float() if shortcut is not None else 0.0)
        y = F.relu(y) if relu else y
    asked = [*leaves, norm.weight, norm.bias]
    found = torch.autograd.grad(y, asked, upstream if kernel else upstream.float())
    assert [one.dtype for one in found] == [one.dtype for one in asked]
    return [y.detach().float(), *(one.float() for one in found), *norm.buffers()]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("with_shortcut", [True, False])
def test_normalisation_of_bfloat16_is_torchs_up_to_its_rounding(
    relu: bool, with_shortcut: bool
) -> None:
    shortcut = draw(6, 32, 5, 3, seed=3) if with_shortcut else None
    found = normalise_in_bfloat16(make_norm(32), relu, shortcut, kernel=True)
    expected = normalise_in_bfloat16(make_norm(32), relu, shortcut, kernel=False)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other.to(one.dtype), rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("relu", [True, False])
def test_normalisation_of_bfloat16_is_that_of_its_plain_loop(relu: bool) -> None:
    shortcut = draw(6, 32, 5, 3, seed=3)
    found = normalise_in_bfloat16(make_norm(32), relu, shortcut, kernel=True)
    with plain_loops():
        expected = normalise_in_bfloat16(make_norm(32), relu, shortcut, kernel=True)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=2**-7, atol=1e-5)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    """Every number of bfloat16 times four factors: ties, infinity, and what is no number."""
    stored = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = lay_out(stored.reshape(-1, 16, 1, 1))
    nothing = torch.zeros(16)
    for factor in (1.0, 1 / 3, 1 + 2**-8, 1e30):
        factors = torch.full((16,), factor)
        found = torch.empty_like(x)
        loaded().call(
            *("normalise_bf16", torch.float32, x, factors, nothing, None, found),
            *(len(x), 16, 0),
        )
        expected = (x.float() * factor + 0.0).bfloat16()
        number = ~expected.isnan()
        assert torch.equal(found.isnan(), ~number)
        assert torch.equal(found[number], expected[number])


def test_a_shortcut_of_another_type_is_added_by_torch() -> None:
    if bfloat16.is_deadly():
        return
    chain = nn.Sequential(nn.Sequential(make_layer(16, 16), make_norm(16)))
    x = draw(3, 16, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.relu(chain(x) + x)
        with kernels(True), bf16(True):
            assert is_on(x)
            found = forward_chain(chain, x, x)
    assert found.dtype is expected.dtype is torch.float32
    assert torch.allclose(found, expected, atol=0.05)


@pytest.mark.parametrize("stem", ["cifar", "none"])
def test_a_network_in_bfloat16_is_as_exact_with_the_kernels_as_without(stem: str) -> None:
    if bfloat16.is_deadly():
        return
    channels = 3 if stem == "cifar" else 16
    with seeds.scoped(3):
        net = make_backbone(NetSettings("resnet8", stem=stem), (channels, 16, 16))  # type: ignore[arg-type]
    twin, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    x = draw(16, channels, 16, 16)
    with bf16(True), torch.autocast("cpu", torch.bfloat16):
        with kernels(True):
            found = slopes_of(net, x)
        expected = slopes_of(twin, x)
    for ours, theirs, right in zip(found, expected, slopes_of(exact, x.double()), strict=True):
        assert ours.dtype is theirs.dtype
        assert (ours - right).norm() <= 1.5 * (theirs - right).norm() + 0.01 * right.norm()


def test_what_is_cast_to_another_type_is_left_to_torch() -> None:
    x = draw(3, 16, 4, 4)
    with kernels(True):
        assert is_on(x) and not is_on(x.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            assert not is_on(x)  # nobody asked for it by `bf16`
            with bf16(True):
                assert is_on(x) and is_on(x.bfloat16()) and not is_on(x.double())
                assert not is_on(x[:0])
        with torch.autocast("cpu", torch.float16), bf16(True):
            assert not is_on(x)
