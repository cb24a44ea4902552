"""The compiled kernels: found, loaded and called; or why there are none."""

import ctypes
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.errors import ConfigError
from coterie.core.settings import KernelKind
from coterie.native.build import LIBRARY, REASON, describe, fingerprint, record_of
from coterie.native.interface import BOTH, SINGLE

LANES = 16  # samples are padded to a multiple of it

CHOICE = "COTERIE_KERNEL"  # what net.kernel = "auto" means, where it is set
VECTORS = "COTERIE_VECTORS"  # a variant by name instead of the fastest
PLACE = "COTERIE_KERNELS"  # a library by its path instead of the installed one

Value = Tensor | float | ctypes.Structure | ctypes.Array[Any] | None  # of an argument
_AGAIN = "build it again: python -m coterie.native.build"
_TYPES = {torch.float32: "f32", torch.float64: "f64"}


@dataclass(frozen=True)
class Missing:
    """Why there are no kernels."""

    reason: str
    unfit: bool = False  # whether some were built or named, and cannot be used


class Library:
    """The kernels of one variant; a call takes tensors, structures, None and numbers."""

    def __init__(self, path: Path, variant: str) -> None:
        self.path, self.variant = path, variant
        self.digest = verify(path)  # another compiler or other flags make another library
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[tuple[str, torch.dtype], Any] = {}
        for dtype, suffix in _TYPES.items():
            for name, signature in (BOTH | SINGLE if suffix == "f32" else BOTH).items():
                function = getattr(loaded, f"{name}_{suffix}_{variant}")
                function.argtypes, function.restype = signature, ctypes.c_int
                self._functions[name, dtype] = function

    def call(self, name: str, dtype: torch.dtype, *values: Value) -> None:
        """Call a kernel; the tensors must be as it wants them."""
        plain = (value.data_ptr() if isinstance(value, Tensor) else value for value in values)
        if self._functions[name, dtype](*plain) != 0:
            raise MemoryError(f"no memory for the kernel {name!r}")


def verify(path: Path) -> str:
    """Return the SHA-256 of a library that is as it was built; `OSError` says what is wrong.

    It is compared before it is loaded: code that is cut off or changed kills a process.
    """
    found, record = describe(path.read_bytes()), record_of(path)
    try:
        built = json.loads(record.read_bytes())
        length, digest = built["bytes"], built["sha256"]
    except FileNotFoundError:
        raise OSError(f"its record {record.name} is not there; {_AGAIN}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"its record {record.name} is damaged; {_AGAIN}") from error
    if found["bytes"] != length:
        raise OSError(f"it has {found['bytes']} bytes, and was built with {length}; {_AGAIN}")
    if found["sha256"] != digest:
        raise OSError(f"its bytes are not those that were built; {_AGAIN}")
    return str(digest)


def variants(path: Path) -> list[str]:
    """The variants in a library that this processor can run, the fastest first."""
    verify(path)
    loaded = ctypes.CDLL(str(path))
    for name in ("coterie_sources", "coterie_variants"):
        getattr(loaded, name).restype = ctypes.c_char_p
    if loaded.coterie_sources().decode() != fingerprint():
        raise OSError(f"it was built from other sources; {_AGAIN}")
    return str(loaded.coterie_variants().decode()).split()


@functools.cache
def library() -> Library | Missing:
    """The kernels that this process uses."""
    named = os.environ.get(PLACE)
    path = Path(named) if named else LIBRARY
    if not path.is_file():
        if named:
            return Missing(f"{PLACE} = {named} is not there", unfit=True)
        why = REASON.read_text().strip() if REASON.is_file() else "Coterie was not installed"
        return Missing(f"they were not built: {why}")
    try:
        usable = variants(path)
        chosen = os.environ.get(VECTORS) or usable[0]
        if chosen not in usable:
            return Missing(f"{VECTORS} = {chosen} is not among {', '.join(usable)}", unfit=True)
        return Library(path, chosen)
    except (OSError, AttributeError) as error:
        return Missing(f"{path} cannot be used: {error}", unfit=True)


def loaded() -> Library:
    """The kernels, where the configuration says that they are used."""
    kernels = library()
    if isinstance(kernels, Missing):
        raise ConfigError(f"net.kernel = 'native' has no kernels here: {kernels.reason}")
    return kernels


def kernel_in_use(kernel: KernelKind, devices: tuple[str, ...]) -> Literal["native", "torch"]:
    """What `net.kernel` means on this machine, for computations on these devices.

    A kernel that is named stays so: whether its devices are CPUs is seen when they are opened.
    """
    source, asked = _asked(kernel)
    kernels = library()
    if asked == "native" and isinstance(kernels, Missing):
        reason = kernels.reason
        raise ConfigError(f"{source} has no kernels here: {reason}; a new run can have 'torch'")
    if kernel != "auto":
        return kernel
    usable = find_accelerator(devices) is None and not isinstance(kernels, Missing)
    return "native" if usable and asked != "torch" else "torch"


def note_fallback(kernel: KernelKind, devices: tuple[str, ...]) -> str:
    """Say that a run has torch although kernels were built, and why; else nothing."""
    kernels, (source, asked) = library(), _asked(kernel)
    if (
        asked != "auto"
        or find_accelerator(devices)
        or isinstance(kernels, Library)
        or not kernels.unfit
    ):
        return ""
    return f"{source} is torch here, which is slower, as the kernels do not fit: {kernels.reason}"


def in_words(devices: tuple[str, ...]) -> str:
    """What `net.kernel = "auto"` means here, and why."""
    kernels, off = library(), find_accelerator(devices)
    if kernel_in_use("auto", devices) == "native":
        return f"native, {loaded().variant}"
    source, asked = _asked("auto")
    if asked == "torch":
        return f"torch: {source}"
    if off is not None:
        return f"torch: the kernels are for CPUs, and runs compute on {off}"
    return f"torch: {kernels.reason if isinstance(kernels, Missing) else source}"


def _asked(kernel: KernelKind) -> tuple[str, str]:
    """Who says so, and which kernel."""
    named = os.environ.get(CHOICE, "") if kernel == "auto" else ""
    if not named:
        return f"net.kernel = {kernel!r}", kernel
    if named not in ("auto", "native", "torch"):
        raise ConfigError(f"{CHOICE} = {named!r} must be auto, native or torch")
    return f"{CHOICE} = {named!r}", named


def find_accelerator(devices: tuple[str, ...]) -> str | None:
    """The first device that is no CPU; "auto" is a GPU where there is one."""
    auto = "cuda" if "auto" in devices and torch.cuda.is_available() else "cpu"
    named = (auto if device == "auto" else device for device in devices)
    return next((device for device in named if not device.startswith("cpu")), None)
