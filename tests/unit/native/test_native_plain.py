"""Every kernel against the plain loop above it that says what it computes."""

import pytest
import torch
from native_reference import conv_case, gradients, needs_kernels, plain_loops, variant
from torch import Tensor, nn

from coterie.native.contrast import contrast
from coterie.native.frozen_network import OneCall
from coterie.native.images import gather
from coterie.native.layers import conv_relu_pool, in_lanes
from coterie.native.sgd import FlatSGD
from coterie.native.switch import kernels

__all__ = ["variant"]  # a fixture

pytestmark = [needs_kernels, pytest.mark.usefixtures("variant")]

# samples, channels, outputs, rows, columns, side of the weights, padding
CASES = [
    (21, 3, 6, 12, 11, 5, 0),
    (5, 2, 7, 9, 8, 3, 1),
    (17, 6, 16, 8, 8, 5, 2),
    (3, 4, 3, 6, 7, 2, 0),
    (2, 1, 5, 9, 9, 7, 1),
]


def close(found: Tensor, expected: Tensor) -> bool:
    largest = expected.abs().max().clamp(min=1e-30)
    near = 1e-5 if found.dtype == torch.float32 else 1e-12
    return bool((found - expected).abs().max() <= near * largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_and_their_gradients(case: tuple[int, ...], dtype: torch.dtype) -> None:
    *sizes, padding = case
    given = conv_case(*sizes, dtype=dtype)
    upstream = torch.ones((), dtype=dtype)

    def work() -> list[Tensor]:
        with torch.no_grad():
            frozen = conv_relu_pool(*given, padding)
        trained = conv_relu_pool(given[0], given[1].clone().requires_grad_(), given[2], padding)
        slopes = gradients(conv_relu_pool, given, padding, upstream.expand(frozen.shape))
        return [frozen, trained.detach(), *slopes]

    found = work()
    with plain_loops():
        expected = work()
    assert torch.equal(expected[0], expected[1])
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert torch.equal(one, other)  # whole numbers, which no order of adding rounds
    assert close(found[0], expected[0])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks(dtype: torch.dtype) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = nn.Sequential(
            nn.Conv2d(2, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(6 * 25, 9),
            nn.ReLU(),
            nn.Linear(9, 4),
        ).to(dtype)
        x = torch.randn(19, 2, 11, 10, dtype=dtype)
    with kernels(True):
        (found,) = OneCall()([[net]], x) or [x]
        with plain_loops():
            (expected,) = OneCall()([[net]], x) or [x]
    assert close(found, expected) and found.shape == (19, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_contrast_of_models(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    z, *references = (torch.randn(9, 37, generator=generator, dtype=dtype) for _ in range(4))
    found = contrast(z, references, 0.5, 1e-8)
    with plain_loops():
        expected = contrast(z, references, 0.5, 1e-8)
    assert all(close(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("shape", [(37, 3, 7, 9), (16, 2, 4, 4), (1, 1, 1, 1)])
def test_batches_with_their_samples_innermost(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
        found = in_lanes(x)
        with plain_loops():
            assert torch.equal(found, in_lanes(x))


@pytest.mark.parametrize("reflect", [True, False])
def test_images_from_bytes(reflect: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    store = torch.randint(0, 256, (23, 3, 17, 19), generator=generator, dtype=torch.uint8)
    rows = torch.randint(0, 23, (35,), generator=generator)
    starts = torch.randint(0, 7, (23, 2), generator=generator)
    mirrored = torch.rand(23, generator=generator) < 0.5
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)

    def work() -> tuple[Tensor, Tensor]:
        window = {"starts": starts, "mirrored": mirrored, "padding": 3, "reflect": reflect}
        return gather(store, rows, mean, std), gather(store, rows, mean, std, **window)  # type: ignore[arg-type]

    found = work()
    with plain_loops():
        expected = work()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_of_sgd(nesterov: bool) -> None:
    def work() -> Tensor:
        generator = torch.Generator().manual_seed(6)
        weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in (33, 5, 64)]
        descent = FlatSGD(weights, lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=1e-3)
        for _ in range(3):
            for weight in weights[:2]:
                weight.grad = torch.randn(weight.shape, generator=generator)
            descent.step()
        return torch.cat([weight.detach() for weight in weights])

    found = work()
    with plain_loops():
        assert torch.allclose(found, work(), rtol=1e-6, atol=1e-7)
