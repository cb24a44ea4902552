"""The switch of the kernels: off, unless whoever drives a computation turns them on.

What has a kernel asks here each time it is called, so a network that is used outside a run consists
of plain torch operations, whichever kernel it was trained with.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_ON: ContextVar[bool] = ContextVar("kernels", default=False)
_BF16: ContextVar[bool] = ContextVar("bf16", default=False)
_PLAIN = (Tensor, nn.Parameter)


@contextmanager
def kernels(on: bool) -> Iterator[None]:
    """Compute with the kernels, or without them, inside a `with` block.

    Never hold it open across the `yield` of a generator: the caller would compute under it too.
    """
    before = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(before)


@contextmanager
def bf16(on: bool) -> Iterator[None]:
    """Compute forward passes in bfloat16, or in float32, inside a `with` block."""
    before = _BF16.set(on)
    try:
        yield
    finally:
        _BF16.reset(before)


def bf16_on() -> bool:
    """Whether networks compute in bfloat16."""
    return _BF16.get()


def kernels_on() -> bool:
    """Whether computations use the kernels where they can."""
    return _ON.get()


def records_graph() -> bool:
    """Whether torch traces or compiles what is called, to run it again on other numbers."""
    traces = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return torch.compiler.is_compiling() or bool(traces)


def intercepted() -> bool:
    """Whether torch does more with what is called than compute it.

    It may record a graph, transform a function (`torch.func`), carry tangents along, hand each
    operation to somebody (fake tensors, counters of operations), or convert to other precisions.
    """
    return is_observed() or torch.is_autocast_enabled("cpu")


def is_observed() -> bool:
    """Whether torch does any of that but to convert."""
    return (
        records_graph()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or forward_ad._current_level >= 0
    )


def converts_to_bfloat16() -> bool:
    """Whether torch converts what convolutions take because `bf16` says so, and does no more."""
    if not bf16_on() or not torch.is_autocast_enabled("cpu") or is_observed():
        return False
    return torch.get_autocast_dtype("cpu") is torch.bfloat16


def takes(*tensors: Tensor) -> bool:
    """Whether a kernel may read these tensors: plain dense ones on a CPU that hold numbers now."""
    return not intercepted() and are_plain(*tensors)


def are_plain(*tensors: Tensor) -> bool:
    """Whether these tensors are dense ones on a CPU, of no class derived from torch's."""
    for one in tensors:
        if type(one) not in _PLAIN or one.layout is not torch.strided or one.device.type != "cpu":
            return False
    return True
