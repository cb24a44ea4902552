"""Frozen networks: tiles for 5 x 5 weights, a network in one call, MOON's term in one call."""

import copy
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_reference import by_torch, laid_in_lanes, needs_kernels, variant
from torch import Tensor, nn

from coterie.kit.losses import model_contrast
from coterie.native.contrast import contrast, takes
from coterie.native.frozen_network import OneCall
from coterie.native.layers import conv_relu_pool
from coterie.native.switch import kernels
from coterie.native.unit_length import UnitLength
from coterie.nets.backbones.simple_cnn import SimpleCNN
from coterie.nets.heads import Network, make_unit, mlp_head, moon_projector

__all__ = ["variant"]  # a fixture

pytestmark = [needs_kernels, pytest.mark.usefixtures("variant")]


@pytest.fixture(autouse=True)
def same_weights() -> Iterator[None]:
    """Layers start with the same weights in every run of the tests."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def seeded(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def off(found: Tensor, expected: Tensor) -> float:
    """The largest error, in parts of the largest entry."""
    largest = expected.abs().max().clamp(min=1e-30)
    return float((found.double() - expected.double()).abs().max() / largest)


# ---- tiles ----


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    samples=st.integers(1, 130),
    channels=st.integers(1, 7),
    outputs=st.integers(1, 33),
    rows=st.integers(6, 20),
    columns=st.integers(6, 20),
)
@example(samples=64, channels=3, outputs=6, rows=32, columns=32)
@example(samples=130, channels=33, outputs=5, rows=7, columns=33)
@example(samples=1, channels=1, outputs=1, rows=6, columns=6)
def test_tiles_of_any_shape(
    variant: str, samples: int, channels: int, outputs: int, rows: int, columns: int
) -> None:
    for dtype, near in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        x = seeded(samples, samples, channels, rows, columns, dtype=dtype)
        weight, bias = seeded(1, outputs, channels, 5, 5, dtype=dtype), seeded(2, outputs).to(dtype)
        found = conv_relu_pool(x, weight, bias)
        assert off(found, by_torch(x.double(), weight.double(), bias.double())) <= near
        assert torch.equal(found, conv_relu_pool(laid_in_lanes(x), weight, bias))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_sample(value: float) -> None:
    x, weight, bias = seeded(0, 18, 2, 12, 12), seeded(1, 3, 2, 5, 5), seeded(2, 3)
    expected = conv_relu_pool(x, weight, bias)
    x[3, 1, 4, 5] = value
    found = conv_relu_pool(x, weight, bias)
    others = [sample for sample in range(18) if sample != 3]
    assert torch.equal(found[others], expected[others])
    hit = ~torch.isfinite(by_torch(x, weight, bias)[3])
    assert not torch.isfinite(found[3][hit]).any()


# ---- a network in one call ----


def network(shape: tuple[int, int, int], head: str) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        heads: dict[str, nn.Module] = {}
        if head in ("moon", "moon without classes", "unit"):
            heads["projector"] = moon_projector(84, 40)
        if head == "norms":
            heads["projector"] = mlp_head((84, 30, 20))
        if head != "moon without classes":
            heads["classifier"] = nn.Linear({"none": 84, "norms": 20}.get(head, 40), 7)
        net = Network(SimpleCNN(*shape), **heads).eval()
        if head == "unit":
            make_unit(net)
        return net


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 19, 23)])
@pytest.mark.parametrize("samples", [1, 20, 64, 130])
@pytest.mark.parametrize("head", ["moon", "moon without classes", "unit", "none", "norms"])
def test_a_network_in_one_call(shape: tuple[int, int, int], samples: int, head: str) -> None:
    net = network(shape, head)
    x = seeded(6, samples, *shape)
    with torch.no_grad():
        expected = net(x)
        with kernels(True):
            found = net(x)
            again = net(laid_in_lanes(x))
            h = net.encode(x)
    for one, other, third in zip(found, expected, again, strict=True):
        if other is None:
            assert one is None and third is None
            continue
        assert one is not None and third is not None
        assert one.is_contiguous() and not one.requires_grad
        assert off(one, other) < 1e-5
        assert torch.equal(one, third)
    assert torch.equal(h, found.h) and not torch.equal(h, expected.h)


@torch.no_grad()
def test_later_weights_are_seen() -> None:
    net = network((1, 12, 12), "moon")
    x = seeded(7, 9, 1, 12, 12)
    with kernels(True):
        first = net(x).z
        assert torch.equal(net(x).z, first)
        net.load_state_dict({name: 2 * value for name, value in net.state_dict().items()})
        second = net(x).z  # in place
        assert not torch.equal(second, first)
        for parameter in net.parameters():
            parameter.data = parameter.data / 2
        assert torch.equal(net(x).z, first)  # at another address
        halves = {name: value / 2 for name, value in net.named_parameters()}
        called = torch.func.functional_call(net, halves, (x,)).z
        assert not torch.equal(called, first)
        assert torch.equal(torch.func.functional_call(copy.deepcopy(net), halves, (x,)).z, called)
        assert torch.equal(net(x).z, first)
        assert isinstance(net.backbone, SimpleCNN)
        net.backbone.top[2] = nn.Linear(120, 84)  # another layer
        second = net(x).z
        assert not torch.equal(second, first)
        net.projector = moon_projector(84, 40)
        assert not torch.equal(net(x).z, second)


@torch.no_grad()
def test_a_copy_has_its_own_weights() -> None:
    net = network((1, 12, 12), "moon")
    x = seeded(7, 9, 1, 12, 12)
    with kernels(True):
        first = net(x).z
        other = copy.deepcopy(net)
        for parameter in other.parameters():
            parameter.zero_()
        assert torch.equal(net(x).z, first) and not other(x).z.any()


@pytest.mark.parametrize("head", ["moon", "unit"])
def test_double_precision_in_one_call(head: str) -> None:
    net = network((3, 16, 18), head).double()
    x = seeded(8, 17, 3, 16, 18, dtype=torch.float64)
    with torch.no_grad():
        expected = net(x).z
        with kernels(True):
            assert off(net(x).z, expected) < 1e-12


def stack(*top: nn.Module) -> nn.Sequential:
    """Plain torch layers that the kernel knows, and others behind them."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *top)


@torch.no_grad()
def test_layers_are_recognised_by_their_kind() -> None:
    x = seeded(3, 5, 1, 6, 6)
    known = stack(nn.Linear(12, 4, bias=False), nn.ReLU(), nn.Sequential(nn.Linear(4, 2)))
    assert OneCall()([[known]], x) is None  # kernels are off
    with kernels(True):
        (found,) = OneCall()([[known]], x) or [x]
        assert off(found, known(x)) < 1e-5
        with torch.enable_grad():
            assert OneCall()([[known]], x) is None
        assert OneCall()([[known], [known]], x) is not None
        assert OneCall()([[known, nn.Linear(2, 3), nn.Linear(3, 2)]], x) is not None


class Doubling(nn.Linear):
    """A linear layer of a user, which is more than that."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


UNKNOWN = [
    stack(nn.Linear(12, 4), nn.Tanh()),
    stack(nn.Linear(12, 4), nn.BatchNorm1d(4)),
    stack(Doubling(12, 4)),
    stack(),
    stack(nn.Linear(11, 4)),  # does not fit, which torch says
    nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)),
    nn.Sequential(nn.Conv2d(1, 3, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 4)),
    nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)),
    nn.Sequential(nn.Flatten(), nn.Linear(36, 2)),
    nn.Sequential(nn.Linear(6, 2)),
    stack(nn.Linear(12, 4)).double(),
    nn.Sequential(),
    nn.Identity(),
]


@torch.no_grad()
@pytest.mark.parametrize("module", UNKNOWN, ids=range(len(UNKNOWN)))
def test_other_networks_are_left_to_torch(module: nn.Module) -> None:
    x = seeded(3, 5, 1, 6, 6)
    with kernels(True):
        assert OneCall()([[module]], x) is None
        assert OneCall()([[stack(nn.Linear(12, 4))], [module]], x) is None


@torch.no_grad()
@pytest.mark.parametrize("samples", [1, 17, 64])
def test_vectors_of_unit_length_in_one_call(samples: int) -> None:
    """Also those of zeros and of what is not finite, which stay in their samples."""
    layer = nn.Linear(12, 5)
    known = stack(layer, UnitLength())
    x = seeded(3, samples, 1, 6, 6)
    layer.bias.zero_()
    x[0] = 0.0
    known[0].bias.zero_()  # type: ignore[operator, union-attr]
    with kernels(True):
        (found,) = OneCall()([[known]], laid_in_lanes(x)) or [x]
        assert off(found, known(x)) < 1e-6
        assert not found[0].any() and torch.allclose(found[1:].norm(dim=1), torch.ones(1))
        layer.weight.mul_(1e-14)  # shorter than what is divided by
        (found,) = OneCall()([[known]], x) or [x]
        assert off(found, known(x)) < 1e-6
        x[0, 0, 2, 2] = float("nan")
        (found,) = OneCall()([[known]], x) or [x]
        assert found[0].isnan().all() and found[1:].isfinite().all()


@torch.no_grad()
def test_a_layer_of_unit_length_has_to_follow_a_linear_one_of_its_part() -> None:
    x, layer, last = seeded(3, 5, 1, 6, 6), nn.Linear(12, 4), nn.Linear(4, 2)
    cut = stack(layer, nn.ReLU(), UnitLength())
    hooked = stack(layer, UnitLength())
    hooked[-1].register_forward_hook(lambda *_: None)
    with kernels(True):
        (found,) = OneCall()([[cut]], x) or [x]
        assert off(found, cut(x)) < 1e-6
        h, logits = OneCall()([[cut, last]], x) or [x, x]
        assert off(h, cut(x)) < 1e-6 and off(logits, last(cut(x))) < 1e-5
        assert OneCall()([[stack(layer), nn.Sequential(UnitLength(), last)]], x) is None
        assert OneCall()([[stack(layer, UnitLength(), UnitLength())]], x) is None
        assert OneCall()([[stack(UnitLength(), layer)]], x) is None
        assert OneCall()([[hooked]], x) is None


@torch.no_grad()
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8)])
def test_several_networks_in_one_call(shape: tuple[int, int, int]) -> None:
    nets = [network(shape, "moon"), network(shape, "none"), network(shape, "unit")]
    for weight in nets[1].parameters():
        weight.mul_(1.5)
    x = seeded(10, 21, *shape)
    with kernels(True):
        together = OneCall()([[net.projection()] for net in nets], x)
        assert together is not None
        for z, net in zip(together, nets, strict=True):
            assert torch.equal(z, net(x).z)
        other = network(shape, "norms")
        assert OneCall()([[net.projection()] for net in (nets[0], other)], x) is None


# ---- MOON's term ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 16, 77, 256])
@pytest.mark.parametrize("buffers", [0, 1, 3])
def test_the_contrast_is_that_of_torch(buffers: int, width: int, dtype: torch.dtype) -> None:
    near = 1e-5 if dtype == torch.float32 else 1e-12
    z_glob, *z_prevs = (seeded(k, 21, width, dtype=dtype) for k in range(1 + buffers))
    results = []
    for native in (True, False):
        z = seeded(9, 21, width, dtype=dtype).requires_grad_()
        with kernels(native):
            found = model_contrast(z, z_glob, z_prevs, 0.5)
        (3 * found.loss).backward()
        assert z.grad is not None
        values = [float(value.detach()) for value in found]
        results.append((values, z.grad))
    (values, slope), (others, expected) = results
    assert values == pytest.approx(others, rel=near, abs=near)
    assert float((slope - expected).abs().max()) <= near


def test_the_contrast_of_zeros_and_of_what_is_not_finite() -> None:
    z = torch.zeros(4, 8)
    means, slope = contrast(z, [torch.zeros(4, 8), torch.ones(4, 8)], 0.5, 1e-8)
    assert float(means[0]) == pytest.approx(0.6931472) and slope.isfinite().all()
    z[2, 3] = float("nan")
    means, slope = contrast(z, [torch.zeros(4, 8), torch.ones(4, 8)], 0.5, 1e-8)
    assert means.isnan().all() and slope[2].isnan().all() and slope[[0, 1, 3]].isfinite().all()


def test_what_the_contrast_does_not_take_goes_to_torch() -> None:
    z, other = seeded(1, 5, 8), seeded(2, 5, 8)
    assert takes(z, [other]) and not takes(z.half(), [other.half()])
    assert not takes(z, [other.double()]) and not takes(z[0], [other[0]])
    turned = seeded(2, 8, 5).T
    plain, slope = contrast(z, [turned], 0.5, 1e-8)
    again, same = contrast(z, [turned.contiguous()], 0.5, 1e-8)
    assert torch.equal(plain, again) and torch.equal(slope, same)
