"""The precision of a forward pass: bfloat16 inside networks, where a run asks for it.

Convolutions and linear layers then multiply in bfloat16 and add up in float32 (torch's autocast).
Weights, gradients, optimisers, statistics of BatchNorm, losses and averages stay float32, and so
does what a network hands out.
"""

import functools
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings, PrecisionInUse
from coterie.native.library import find_accelerator
from coterie.native.switch import bf16_on

ISA = "ONEDNN_MAX_CPU_ISA"  # by which a user keeps torch from instructions of the processor
_FASTER = ("resnet8", "resnet18", "resnet50")  # simple-cnn has kernels, others are small
_IMAGES = 4  # axes of a batch of them
_DEADLINE = 180.0  # seconds for the trial, most of which is the import of torch
# Large enough that torch takes the instructions that it would take for a real network.
_TRIAL = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import torch
torch.set_num_threads(1)
torch.randn(64, 512).bfloat16() @ torch.randn(512, 512).bfloat16()
linear, convolution = torch.nn.Linear(512, 256), torch.nn.Conv2d(64, 64, 3, padding=1)
x, images = torch.randn(64, 512, requires_grad=True), torch.randn(16, 64, 16, 16)
with torch.autocast("cpu", torch.bfloat16):
    outputs = [linear(x)]
    for layout in (torch.contiguous_format, torch.channels_last):
        laid_out = images.contiguous(memory_format=layout).requires_grad_()
        outputs.append(convolution(laid_out))
sum(output.float().square().mean() for output in outputs).backward()
"""


def choose_precision(net: NetSettings, devices: tuple[str, ...]) -> PrecisionInUse:
    """Choose what `net.precision = "auto"` means here: bfloat16 where it was measured to be faster.

    Those are residual networks on CPUs that have instructions for it; benchmarks/speed has the
    times, and benchmarks/papers/precision what became of the accuracy.
    """
    if net.precision != "auto":
        return net.precision
    if net.backbone not in _FASTER or ISA in os.environ or find_accelerator(devices):
        return "fp32"
    return "fp32" if find_bf16_problem("cpu") else "bf16"


def casting(x: Tensor) -> AbstractContextManager[object]:
    """Return the context in which a network computes with `x`."""
    return torch.autocast(x.device.type, torch.bfloat16) if bf16_on() else nullcontext()


def lay_out(x: Tensor) -> Tensor:
    """Return images with their channels innermost in memory, which is faster in bfloat16."""
    return x.contiguous(memory_format=torch.channels_last) if bf16_on() and x.ndim == _IMAGES else x


def to_float32(x: Tensor) -> Tensor:
    """Return what `casting` may have made bfloat16 as float32; what others cast stays as it is."""
    return x.float() if bf16_on() and x.dtype is torch.bfloat16 else x


def check_bf16(device: str) -> None:
    """Refuse bfloat16 on a device that only emulates it, or that dies of it."""
    if reason := find_bf16_problem(device):
        raise ConfigError(f"net.precision = 'bf16': {reason}")


def find_bf16_problem(device: str) -> str:
    """Say why a device cannot compute in bfloat16, and the remedies; empty if it can."""
    if device.startswith("cuda"):
        has = torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if has else f"{device} has no bfloat16; use net.precision = 'fp32'"
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return (
            "this processor has no instructions for bfloat16 (avx512_bf16 or amx_bf16), and to "
            "emulate them takes several times as long; use net.precision = 'fp32'"
        )
    if problem := try_bf16():
        return (
            f"this processor announces bfloat16, but a trial of it {problem}; use net.precision = "
            f"'fp32', or set {ISA}=AVX512_CORE_BF16 before the start"
        )
    return ""


@functools.cache
def try_bf16() -> str:
    """Compute in bfloat16 in another process, once; say how that failed, or nothing.

    A virtual machine may announce tiles (AMX) that it has not set up. The first product then kills
    the process, which no flag of the processor foretells.
    """
    try:
        status = run_trial(_TRIAL)
    except subprocess.TimeoutExpired:
        return f"took longer than {_DEADLINE:.0f} s"
    except OSError as error:
        return f"could not be started ({error.strerror or error})"
    if status >= 0:
        return f"ended with exit status {status}" if status else ""
    name = next((s.name for s in signal.Signals if s == -status), f"signal {-status}")
    return f"was killed by {name}"


def run_trial(program: str) -> int:
    """Run a Python program in a child process without output; return its exit status."""
    return subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_DEADLINE,
        check=False,
    ).returncode
