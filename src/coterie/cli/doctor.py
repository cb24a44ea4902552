"""`coterie doctor`: describe this machine, and check that Coterie works on it."""

import os
import platform
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import typer

from coterie.cli.options import Debug
from coterie.core.errors import CoterieError, RunFailed
from coterie.core.formatting import format_bytes

_PACKAGES = ("torch", "numpy", "safetensors", "scikit-learn", "pydantic", "typer", "plotly")


def doctor(debug: Debug = False) -> None:
    """Show versions, devices, kernels, memory and cache; check that two executors agree."""
    import torch

    import coterie
    from coterie.core.exact import cores
    from coterie.data.datasets import default_cache
    from coterie.native.library import in_words

    _line("coterie", f"{coterie.__version__}, {Path(coterie.__file__).parent}")
    _line("python", f"{platform.python_version()}, {sys.executable}")
    _line("packages", ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES))
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    _line("devices", ", ".join(["cpu", *devices]))
    capability = torch.backends.cpu.get_cpu_capability()
    _line("processor", f"{platform.machine()}, vectors {capability}, {cores()} cores")
    _line("kernel", in_words(("auto",)))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    _line("memory", format_bytes(pages))
    cache = default_cache()
    _line("cache", f"{cache}, {_room(cache)}")
    _line("runs", f"{Path('runs').absolute()}, {_room(Path('runs').absolute())}")
    _line("executors", f"serial = processes, {_check_agreement():.1f} s")


def _line(name: str, value: str) -> None:
    typer.echo(f"{name:<10} {value}")


def _room(path: Path) -> str:
    """Describe the free space and whether the folder is writable, without creating it."""
    while not path.exists():
        path = path.parent
    free = format_bytes(shutil.disk_usage(path).free)
    writable = "writable" if os.access(path, os.W_OK) else "NOT writable"
    return f"{writable}, {free} free"


def _check_agreement() -> float:
    """Run one round serially and in workers, compare the digests, and return the seconds."""
    from coterie.experiment.run import run

    start = time.perf_counter()
    digests = set()
    for kind in ("serial", "processes"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = run(
                    "digits/fedavg",
                    out=Path(folder) / "run",
                    run={"rounds": 1, "device": "cpu"},
                    local={"epochs": 1},
                    executor={"kind": kind, "workers": 2},
                )
            except CoterieError as error:
                raise RunFailed(f"the {kind} executor does not work here: {error}") from error
            digests.add(result.history[-1].digest)
    if len(digests) != 1:
        raise RunFailed("serial and processes gave different results on this machine")
    return time.perf_counter() - start
