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


def kernels_on() -> bool:
    """Whether computations use the kernels where they can."""
    return _ON.get()


def records_graph() -> bool:
    """Whether torch traces or compiles what is called, to run it again on other numbers."""
    traces = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return torch.compiler.is_compiling() or bool(traces)


def intercepted() -> bool:
    """Whether torch does more with what is called than compute it.

    It may record a graph, transform a function (`torch.func`), carry tangents along, convert to
    other precisions, or hand each operation to somebody (fake tensors, counters of operations).
    """
    return (
        records_graph()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
    )


def takes(*tensors: Tensor) -> bool:
    """Whether a kernel may read these tensors: plain dense ones on a CPU that hold numbers now."""
    if intercepted():
        return False
    for one in tensors:
        if type(one) not in _PLAIN or one.layout is not torch.strided or one.device.type != "cpu":
            return False
    return True
