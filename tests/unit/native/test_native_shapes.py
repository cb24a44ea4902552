"""The kernels over random shapes: exact where numbers are, within 1e-5 where they are rounded."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_reference import by_kernel, by_torch, gradients, needs_kernels, variant
from torch import Tensor
from torch.nn import functional as F

__all__ = ["variant"]  # a fixture

pytestmark = needs_kernels

MOST_WORK = 10_000_000  # multiply-adds of one forward pass: the test takes seconds, not minutes
TILED = 5  # weights for which the frozen form rounds on the way
Shape = tuple[int, int, int, int, int, int, int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Samples, channels, outputs, rows, columns, side of the weights, padding."""
    channels, outputs = draw(st.integers(1, 33)), draw(st.integers(1, 33))
    rows, columns = draw(st.integers(5, 33)), draw(st.integers(5, 33))
    k = draw(st.integers(1, 7))
    fewest = max(0, -(-(k + 1 - min(rows, columns)) // 2))  # padding that leaves something to pool
    padding = draw(st.integers(fewest, max(fewest, k // 2)))
    work = channels * outputs * rows * columns * k * k
    samples = draw(st.integers(1, min(130, max(1, MOST_WORK // work))))
    return samples, channels, outputs, rows, columns, k, padding


def whole_numbers(shape: tuple[int, ...], generator: torch.Generator, most: int) -> Tensor:
    return torch.randint(-most, most + 1, shape, generator=generator).float()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(shape=shapes(), seed=st.integers(0, 2**31))
@example(shape=(130, 1, 1, 33, 32, 5, 0), seed=0)
@example(shape=(1, 33, 33, 5, 6, 3, 1), seed=0)
@example(shape=(17, 2, 3, 5, 5, 7, 2), seed=0)
def test_whole_numbers_come_out_equal(variant: str, shape: Shape, seed: int) -> None:
    """No sum is rounded here, so any order gives the same: values, ties and gradients."""
    samples, channels, outputs, rows, columns, k, padding = shape
    generator = torch.Generator().manual_seed(seed)
    given = (
        whole_numbers((samples, channels, rows, columns), generator, 2),
        whole_numbers((outputs, channels, k, k), generator, 2),
        whole_numbers((outputs,), generator, 3),
    )
    expected = by_torch(*given, padding)
    leaf = given[1].clone().requires_grad_()
    assert torch.equal(by_kernel(given[0], leaf, given[2], padding), expected)
    if k == TILED:
        assert _close(by_kernel(*given, padding), expected.double())
    else:
        assert torch.equal(by_kernel(*given, padding), expected)
    upstream = whole_numbers(tuple(expected.shape), generator, 2)
    found = gradients(by_kernel, given, padding, upstream)
    wanted = gradients(by_torch, given, padding, upstream)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


def decided(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Where rounding cannot change which of a window's four values, and zero, is the largest."""
    full = F.conv2d(x, weight, bias, padding=padding)
    rows, columns = (side // 2 * 2 for side in full.shape[2:])
    windows = full[..., :rows, :columns].unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2)
    zero = torch.zeros_like(windows[..., :1])
    first, second = torch.cat([windows, zero], -1).topk(2).values.unbind(-1)
    return first - second > 1e-4 * full.abs().max()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(shape=shapes(), seed=st.integers(0, 2**31))
def test_rounded_numbers_are_within_a_hundred_thousandth(
    variant: str, shape: Shape, seed: int
) -> None:
    """Measured against double precision, of the largest entry: single precision, torch's as well,
    has an error of its own. Where rounding alone could choose another place of a pooled window no
    gradient is sent back. Numbers are mostly positive, so that sums do not cancel to nothing."""
    samples, channels, outputs, rows, columns, k, padding = shape
    generator = torch.Generator().manual_seed(seed)

    def numbers(*sizes: int) -> Tensor:
        return torch.rand(sizes, generator=generator) * 3 - 0.5

    x, weight = numbers(samples, channels, rows, columns), numbers(outputs, channels, k, k)
    given = (x, weight, numbers(outputs))
    exact = (given[0].double(), given[1].double(), given[2].double())
    expected = by_torch(*exact, padding)
    assert _close(by_kernel(*given, padding), expected)  # as in frozen networks
    assert _close(by_kernel(x, weight.clone().requires_grad_(), given[2], padding), expected)
    upstream = numbers(*expected.shape) * decided(*exact, padding)
    found = gradients(by_kernel, given, padding, upstream)
    wanted = gradients(by_torch, exact, padding, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        assert _close(one, other)


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool((found.detach().double() - expected).abs().max() <= 1e-5 * expected.abs().max())
