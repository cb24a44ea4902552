"""The fused convolution: its gradients, strides, ties, what is not a number, what is refused."""

import pytest
import torch
from native_reference import (
    by_kernel,
    by_torch,
    gradients,
    laid_in_lanes,
    needs_kernels,
    variant,
)
from torch import Tensor, nn

from coterie.native.layers import (
    as_batch,
    conv_relu_pool,
    forward_fused,
    fusable,
    in_lanes,
    lanes_for,
)
from coterie.native.switch import kernels
from coterie.nets.backbones.simple_cnn import SimpleCNN

__all__ = ["variant"]  # a fixture

pytestmark = [needs_kernels, pytest.mark.usefixtures("variant")]

# samples, channels, rows, columns, side of the weights, padding
CASES = [(1, 1, 6, 6, 3, 0), (2, 2, 6, 7, 5, 2), (2, 3, 6, 5, 2, 0), (17, 1, 4, 3, 1, 0)]
CASES += [(1, 2, 8, 7, 7, 3), (1, 4, 4, 5, 4, 1)]


def given(
    samples: int, channels: int, rows: int, columns: int, k: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch, weights of as many outputs as channels and two more, a bias."""
    generator = torch.Generator().manual_seed(samples + 10 * channels + 100 * k)
    sizes = ((samples, channels, rows, columns), (channels + 2, channels, k, k), (channels + 2,))
    x, weight, bias = (torch.randn(size, generator=generator, dtype=dtype) for size in sizes)
    return x, weight, bias


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_differences(case: tuple[int, ...]) -> None:
    *shape, padding = case
    leaves = tuple(one.requires_grad_() for one in given(*shape, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda *each: conv_relu_pool(*each, padding), leaves)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_double_precision_agrees_with_torch(case: tuple[int, ...]) -> None:
    *shape, padding = case
    whole = given(*shape, dtype=torch.float64)
    expected = by_torch(*whole, padding)
    assert torch.allclose(by_kernel(*whole, padding), expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    found = gradients(by_kernel, whole, padding, upstream)
    for one, other in zip(found, gradients(by_torch, whole, padding, upstream), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-11)


def test_the_same_call_gives_the_same_bits() -> None:
    whole = given(37, 5, 12, 11, 5)
    upstream = torch.randn(by_torch(*whole).shape)
    first, second = (gradients(by_kernel, whole, 0, upstream) for _ in range(2))
    assert torch.equal(by_kernel(*whole), by_kernel(*whole))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("k", [3, 4])
def test_the_frozen_form_has_the_bits_of_the_training_form(k: int) -> None:
    """For 5 x 5 weights it has fewer multiplications, and is tested in test_native_frozen.py."""
    whole = given(21, 3, 14, 14, k)
    with torch.no_grad():
        frozen = conv_relu_pool(*whole, 2)
    trained = conv_relu_pool(*(one.requires_grad_() for one in whole), 2)
    assert trained.requires_grad and not frozen.requires_grad
    assert torch.equal(frozen, trained)


def strided(x: Tensor) -> dict[str, Tensor]:
    """Batches with the values of `x` and other strides."""
    samples, channels, rows, columns = x.shape
    wide = torch.full((2 * samples, channels + 1, rows + 2, columns + 3), 7.0)
    sliced = wide[::2, 1:, 1:-1, 2:-1]
    sliced.copy_(x)
    memory = torch.full((channels, rows, columns, 2 * lanes_for(samples)), float("inf"))
    later = as_batch(memory, len(memory[0, 0, 0]))[3 : 3 + samples]
    later.copy_(x)
    tail = torch.full((channels, rows, columns, lanes_for(samples)), float("nan"))
    shifted = as_batch(tail, tail.shape[-1])[-samples:]
    shifted.copy_(x)
    return {
        "sliced": sliced,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "turned": x.transpose(2, 3).contiguous().transpose(2, 3),
        "in lanes": laid_in_lanes(x),
        "in lanes, later": later,
        "in lanes, at their end": shifted,
    }


@pytest.mark.parametrize("samples", [1, 5, 16, 19])
def test_strides_do_not_matter(samples: int) -> None:
    x, weight, bias = given(samples, 3, 9, 8, 3)
    expected = by_kernel(x, weight, bias)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    wanted = gradients(by_kernel, (x, weight, bias), 0, upstream)
    for form, batch in strided(x).items():
        assert torch.equal(batch, x), form
        assert torch.equal(by_kernel(batch, weight, bias), expected), form
        for back, gradient in strided(upstream).items():
            found = gradients(by_kernel, (batch, weight, bias), 0, gradient)
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other), (form, back)


def test_expanded_batches_and_gradients() -> None:
    x, weight, bias = given(1, 2, 8, 8, 3)
    many = x.expand(20, -1, -1, -1)
    assert torch.equal(by_kernel(many, weight, bias), by_kernel(many.clone(), weight, bias))
    upstream = torch.ones(1).expand(by_torch(many, weight, bias).shape)
    found = gradients(by_kernel, (many, weight, bias), 0, upstream)
    for one, other in zip(
        found, gradients(by_torch, (many, weight, bias), 0, upstream), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_weights_with_strides() -> None:
    x, weight, bias = given(4, 3, 8, 8, 3)
    turned = weight.transpose(2, 3).contiguous().transpose(2, 3)
    doubled = torch.stack([bias, bias], 1)[:, 0]
    upstream = torch.randn(by_torch(x, weight, bias).shape)
    found = gradients(by_kernel, (x, turned, doubled), 0, upstream)
    for one, other in zip(found, gradients(by_kernel, (x, weight, bias), 0, upstream), strict=True):
        assert torch.equal(one, other)


def test_a_part_of_a_batch_does_not_hear_of_the_rest() -> None:
    """Gradients sum over the samples that were given, not over those beside them in memory."""
    x, weight, bias = given(16, 2, 8, 8, 3)
    laid = laid_in_lanes(x)
    laid[10:] = float("nan")
    upstream = laid_in_lanes(torch.randn(by_torch(x, weight, bias).shape))
    found = gradients(by_kernel, (laid[:10], weight, bias), 0, upstream[:10])
    wanted = gradients(by_kernel, (x[:10], weight, bias), 0, upstream[:10].clone())
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_spreads_as_in_torch(value: float) -> None:
    x, weight, bias = given(18, 2, 9, 10, 3)
    x[3, 1, 4, 5] = x[17, 0, 0, 0] = value
    expected = by_torch(x, weight, bias)
    found = by_kernel(x, weight, bias)
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isnan(found), torch.isnan(expected))
    assert torch.equal(torch.isinf(found), torch.isinf(expected))
    assert torch.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-5)
    upstream = torch.ones_like(expected)
    found_x, found_weight, found_bias = gradients(by_kernel, (x, weight, bias), 0, upstream)
    wanted_x, wanted_weight, wanted_bias = gradients(by_torch, (x, weight, bias), 0, upstream)
    assert not torch.isfinite(wanted_weight).all() and not torch.isfinite(found_weight).all()
    assert torch.equal(found_bias, wanted_bias)
    others = [sample for sample in range(18) if sample not in (3, 17)]
    assert torch.allclose(found_x[others], wanted_x[others], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_reach_weights_and_bias(value: float) -> None:
    whole = given(18, 2, 9, 10, 3)
    positive = by_torch(*whole) > 0
    upstream = torch.ones(positive.shape)
    upstream[tuple(positive.nonzero()[7])] = value
    x, weight, bias = gradients(by_kernel, whole, 0, upstream)
    assert all(not torch.isfinite(one).all() for one in (x, weight, bias))
    fine = int(positive.nonzero()[7][0]) + 1
    assert torch.isfinite(x[fine:]).all()


@pytest.mark.parametrize("order", [(5, 5, 5, 5), (1, 5, 5, 1), (1, 2, 5, 5), (0, 0, 0, 0)])
def test_of_equal_values_the_first_gets_the_gradient(order: tuple[int, ...]) -> None:
    x = torch.tensor(order, dtype=torch.float32).reshape(1, 1, 2, 2)
    whole = (x, torch.ones(1, 1, 1, 1), torch.zeros(1))
    upstream = torch.ones(1, 1, 1, 1)
    found, expected = (gradients(one, whole, 0, upstream) for one in (by_kernel, by_torch))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    if max(order):
        assert int(found[0].argmax()) == order.index(max(order))
    else:
        assert not found[0].any() and not found[2].any()  # ReLU has no slope at zero


def test_only_the_gradients_that_are_asked_for() -> None:
    x, weight, bias = given(5, 2, 8, 8, 3)
    conv_relu_pool(x, weight.requires_grad_(), bias).sum().backward()
    assert x.grad is None and bias.grad is None and weight.grad is not None
    fixed = weight.detach()
    conv_relu_pool(x.requires_grad_(), fixed, bias).sum().backward()
    assert x.grad is not None and bias.grad is None


@pytest.mark.parametrize("padding", [0, 2])
def test_second_derivatives_are_those_of_torch(padding: int) -> None:
    seconds = []
    for function in (conv_relu_pool, by_torch):
        leaves = [one.requires_grad_() for one in given(3, 2, 8, 8, 3, torch.float64)]
        loss = function(*leaves, padding).pow(3).sum()
        slopes = torch.autograd.grad(loss, leaves, create_graph=True)
        seconds.append(torch.autograd.grad(sum(s.square().sum() for s in slopes), leaves))
    for found, expected in zip(*seconds, strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_what_the_kernels_cannot_take_is_refused() -> None:
    x, weight, bias = given(2, 1, 6, 6, 3)
    with pytest.raises(ValueError, match=r"images of 3 x 6 .* leave nothing to pool .* 3 x 3"):
        conv_relu_pool(x[:, :, :3], weight, bias)
    with pytest.raises(ValueError, match="0 samples"):
        conv_relu_pool(x[:0], weight, bias)
    with pytest.raises(ValueError, match=r"float16"):
        conv_relu_pool(x.half(), weight, bias)
    with pytest.raises(ValueError, match=r"weights of torch\.float64"):
        conv_relu_pool(x, weight.double(), bias)
    for wrong in (weight[:, :, :2], torch.cat([weight, weight], 1), weight[:1]):
        with pytest.raises(ValueError, match="do not fit a batch"):
            conv_relu_pool(x, wrong, bias)


def test_lanes_and_batches_are_views_of_each_other() -> None:
    batch = laid_in_lanes(torch.randn(5, 2, 3, 4))
    memory = in_lanes(batch)
    assert memory.data_ptr() == batch.data_ptr() and memory.shape == (2, 3, 4, 16)
    assert torch.equal(as_batch(memory, 5), batch)
    alone = in_lanes(batch, summed=True)
    assert alone.data_ptr() != batch.data_ptr() and not alone[..., 5:].any()
    assert torch.equal(as_batch(alone, 5), batch)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (1, 28, 28), (2, 19, 23)])
def test_the_small_network_is_the_same_function(shape: tuple[int, int, int]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        native, plain = SimpleCNN(*shape), SimpleCNN(*shape)
    native.load_state_dict(plain.state_dict())
    x = torch.randn((20, *shape), generator=torch.Generator().manual_seed(4))
    with kernels(True):
        h = native(x)
    outputs = [h, plain(x)]
    assert not torch.equal(*outputs)  # not the same road twice
    assert torch.allclose(*outputs, rtol=1e-4, atol=1e-6)
    for h in outputs:
        h.square().sum().backward()
    for one, other in zip(native.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        near = 1e-4 * float(other.grad.abs().max())  # of a sum, an entry may be near zero
        assert torch.allclose(one.grad, other.grad, rtol=0.0, atol=near)


def test_the_small_network_takes_what_the_kernels_do_not() -> None:
    net = SimpleCNN(1, 8, 8)
    with kernels(True):
        assert net(torch.zeros(0, 1, 8, 8)).shape == (0, 84)
        assert net.double()(torch.zeros(3, 1, 8, 8).double()).dtype == torch.float64


def test_rows_of_layers_are_fused_where_they_can_be() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        modules = nn.Sequential(
            nn.Conv2d(2, 3, 3, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 2, 3),
            nn.Tanh(),
        )
        x = torch.randn(5, 2, 12, 12)
    expected = modules(x)
    assert torch.equal(forward_fused(modules, x), expected)
    with kernels(True):
        assert torch.allclose(forward_fused(modules, x), expected, rtol=1e-4, atol=1e-5)
    fits, pool = nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2)
    assert fusable(fits, pool)
    for other in (
        nn.Conv2d(1, 1, (3, 2)),
        nn.Conv2d(1, 1, 3, stride=2),
        nn.Conv2d(1, 1, 3, dilation=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(1, 1, 3, padding=(1, 0)),
        nn.Conv2d(1, 1, 3, padding="same"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
    ):
        assert not fusable(other, pool)
    for wider in (nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, ceil_mode=True)):
        assert not fusable(fits, wider)
