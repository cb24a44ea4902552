"""What exact bits depend on besides seeds: the thread count, deterministic kernels, versions."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import coterie

# cuBLAS is deterministic only with a fixed workspace; it reads this when it is first used
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
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


def keep_freed_memory() -> None:
    """Have this process keep the memory of tensors it is done with, for the next ones.

    The C library gives large blocks back to the system at once, and the pages that come for the
    next step have to be cleared first: a quarter of the time of a small network's step.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not the GNU C library
        return
    tune(_MMAP_THRESHOLD, 32 * 2**20)  # the largest it takes
    tune(_TRIM_THRESHOLD, 256 * 2**20)


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
