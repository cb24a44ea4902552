"""What the tests of the kernels share: their variants, and the same work by torch or in plain C."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.native import library as module
from coterie.native.layers import as_batch, conv_relu_pool, lanes_for
from coterie.native.library import VECTORS, Library, Missing, library, variants

FOUND = library()
WHY = FOUND.reason if isinstance(FOUND, Missing) else ""
VARIANTS = variants(FOUND.path) if isinstance(FOUND, Library) else []
needs_kernels = pytest.mark.skipif(not VARIANTS, reason=f"no kernels: {WHY}")

Grads = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module", params=VARIANTS or ["none"])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every variant that this processor can run, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VECTORS, request.param)
        library.cache_clear()
        yield request.param
    library.cache_clear()


@contextmanager
def plain_loops() -> Iterator[None]:
    """Call the plain loops that say in C what every kernel computes."""
    assert isinstance(FOUND, Library)
    plain = Library(FOUND.path, "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "library", lambda: plain)
        yield


def by_torch(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=padding)), 2)


def by_kernel(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    return conv_relu_pool(x, weight, bias, padding)


def gradients(function: object, given: Grads, padding: int, upstream: Tensor) -> Grads:
    """The gradients of input, weights and bias."""
    assert callable(function)
    leaves = [one.detach().requires_grad_() for one in given]
    function(*leaves, padding).backward(upstream)
    x, weight, bias = (leaf.grad for leaf in leaves)
    assert x is not None and weight is not None and bias is not None
    return x, weight, bias


def conv_case(
    samples: int,
    channels: int,
    outputs: int,
    rows: int,
    columns: int,
    k: int,
    dtype: torch.dtype = torch.float32,
) -> Grads:
    """A batch, weights and a bias of small whole numbers."""
    generator = torch.Generator().manual_seed(samples + 10 * channels + 100 * k)
    sizes = ((samples, channels, rows, columns), (outputs, channels, k, k), (outputs,))
    x, weight, bias = (torch.randint(-2, 3, size, generator=generator).to(dtype) for size in sizes)
    return x, weight, bias


def laid_in_lanes(x: Tensor) -> Tensor:
    """The same batch with its samples innermost in memory, and garbage beyond them."""
    samples, *rest = x.shape
    memory = torch.full((*rest, lanes_for(samples)), float("nan"), dtype=x.dtype)
    batch = as_batch(memory, samples)
    batch.copy_(x)
    return batch
