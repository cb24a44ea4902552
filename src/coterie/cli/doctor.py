"""`coterie doctor`: describe this machine, and check that Coterie works on it."""

import os
import platform
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from coterie.cli.options import Debug
from coterie.cli.terminal import echo_table
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
    from coterie.nets.precision import find_bf16_problem

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    vectors, cache = torch.backends.cpu.get_cpu_capability(), default_cache()
    problem = find_bf16_problem("cpu")
    half = f"no bfloat16: {problem}" if problem else "bfloat16 works"
    lines = {
        "coterie": f"{coterie.__version__}, {Path(coterie.__file__).parent}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "packages": ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES),
        "devices": ", ".join(["cpu", *devices]),
        "processor": f"{platform.machine()}, vectors {vectors}, {cores()} cores, {half}",
        "kernel": in_words(("auto",)),
        "memory": format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "cache": f"{cache}, {_room(cache)}",
        "runs": f"{Path('runs').absolute()}, {_room(Path('runs').absolute())}",
    }
    echo_table([(f"{name:<9}", value) for name, value in lines.items()])
    typer.echo(f"executors  serial = processes, {_check_agreement():.1f} s")


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
    small: Any = {"run": {"rounds": 1, "device": "cpu"}, "local": {"epochs": 1}}
    for kind in ("serial", "processes"):
        executor = {"kind": kind, "workers": 2}
        with tempfile.TemporaryDirectory() as folder:
            try:
                out = Path(folder) / "run"
                result = run("digits/fedavg", out=out, progress=False, executor=executor, **small)
            except CoterieError as error:
                raise RunFailed(f"the {kind} executor does not work here: {error}") from error
            digests.add(result.history[-1].digest)
    if len(digests) != 1:
        raise RunFailed("serial and processes gave different results on this machine")
    return time.perf_counter() - start
