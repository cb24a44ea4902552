"""Bit-for-bit reproducible arithmetic: thread count, deterministic kernels, versions."""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import coterie

# cuBLAS is deterministic only with a fixed workspace; it reads this when it is first used
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"  # the newest instructions that torch's oneDNN may use


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Use one torch thread and deterministic kernels, and restore the old settings afterwards.

    The order of a sum, and so its rounding, depends on the number of threads. Torch would also
    fill uninitialised memory in deterministic mode; that only costs time and is switched off.
    """
    threads = torch.get_num_threads()
    deterministic = torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    # as use_deterministic_algorithms(True), which would import the compiler: a second or more
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
    """Have the C library keep freed memory for the next tensors instead of returning it.

    By default it returns large blocks to the kernel at once, which has to clear the pages it hands
    out for the next step: a quarter of the time of a small network's step.
    """
    if tune := _find_in_c_library("mallopt"):
        tune(_MMAP_THRESHOLD, 32 * 2**20)  # the largest value it accepts
        tune(_TRIM_THRESHOLD, 256 * 2**20)


def return_freed_memory() -> None:
    """Return to the kernel what the C library has kept.

    Once a round it costs little, and a process of many rounds does not grow by the gaps between its
    blocks.
    """
    if trim := _find_in_c_library("malloc_trim"):
        trim(0)


def _find_in_c_library(name: str) -> Callable[..., int] | None:
    """Find a function of the GNU C library; None where there is another one."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return found


def cores() -> int:
    """Count the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(device: str) -> dict[str, str]:
    """Describe everything that must stay the same for a resumed run to give the same bits."""
    return {
        "coterie": coterie.__version__,
        "torch": torch.__version__,
        "threads": "1",
        "machine": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "onednn": os.environ.get(INSTRUCTIONS) or "any",
        "device": device,
    }
