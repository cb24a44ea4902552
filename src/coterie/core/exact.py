"""What exact bits depend on besides seeds: the thread count, deterministic kernels, versions."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import coterie

# cuBLAS is deterministic only with a fixed workspace; it reads this when it is first used
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """One torch thread and deterministic kernels; as it was before, afterwards.

    One and two threads add up in different orders and give different bits. With deterministic
    kernels torch also fills memory that an operation is about to write, which only costs time.
    """
    threads = torch.get_num_threads()
    deterministic = torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    # the same as use_deterministic_algorithms(True), which imports the compiler: a second or more
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cudnn.benchmark = benchmark
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def cores() -> int:
    """How many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(device: str) -> dict[str, str]:
    """What a resumed run must find again to give the same bits."""
    return {
        "coterie": coterie.__version__,
        "torch": torch.__version__,
        "threads": "1",
        "machine": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "device": device,
    }
