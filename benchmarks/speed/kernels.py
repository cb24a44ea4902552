"""The native kernels against eager torch, one thread, taking turns of a few calls in one process.

    make bench                 also the rounds of round.py and methods.py

The convolution stack of simple-cnn on a batch of 64 images of 3 x 32 x 32: both convolutions with
ReLU and pooling, forward and backward, and forward alone as in reference networks; the way of a
batch from bytes to the first convolution with crop-flip; a step of SGD over the network's
parameters. Medians are compared. Writes JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.exact import exact_arithmetic
from coterie.core.settings import Local, NetSettings
from coterie.data.augment import CropFlip, Normalise
from coterie.kit.optimizers import make_optimizer
from coterie.native.images import gather
from coterie.native.layers import forward_fused
from coterie.native.library import loaded
from coterie.native.sgd import FlatSGD
from coterie.native.switch import kernels
from coterie.nets.build import make_backbone

HERE = Path(__file__).parent
BATCH, SHAPE = 64, (3, 32, 32)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
WARM, TIMED = 3, 10  # calls in a row
Work = Callable[[], Any]


def stack(kernel: str, x: Tensor, backward: bool) -> Work:
    """The convolutions of simple-cnn on a batch."""
    torch.manual_seed(0)
    features: Any = make_backbone(NetSettings(), SHAPE).features
    weights, slope = list(features.parameters()), torch.randn_like(features(x))

    def work() -> Any:
        with kernels(kernel == "native"), torch.set_grad_enabled(backward):
            outputs = forward_fused(features, x)
        return torch.autograd.grad(outputs, weights, slope) if backward else outputs

    return work


def images() -> dict[str, Work]:
    """A batch with crop-flip out of 5,000 images."""
    store = torch.randint(0, 256, (5000, *SHAPE), dtype=torch.uint8)
    rows = torch.randperm(len(store))[:BATCH]
    crop, normalise = CropFlip(), Normalise(MEAN, STD)
    table = crop.draw(len(store), np.random.default_rng(0))
    return {
        "torch": lambda: normalise(crop(normalise.unit(store[rows]), rows, table)),
        "native": lambda: gather(store, rows, MEAN, STD, **table, padding=4, reflect=True),
    }


def steps() -> dict[str, Work]:
    """A step of SGD over the parameters of simple-cnn."""
    sizes = [p.shape for p in make_backbone(NetSettings(), SHAPE).parameters()]
    found: dict[str, Work] = {}
    for kind in ("torch", "native"):
        parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
        for one in parameters:
            one.grad = torch.randn(one.shape)
        settings = Local()
        found[kind] = (
            make_optimizer(settings, parameters, 0.01).step
            if kind == "torch"
            else FlatSGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-5).step
        )
    return found


def several(work: Work) -> list[float]:
    """Seconds of a few calls in a row; the first ones bring their own data into the caches."""
    found = []
    for _ in range(WARM + TIMED):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found[WARM:]


def measure(turns: int) -> dict[str, Any]:
    """Milliseconds of every piece of work under both kernels."""
    x = torch.randn(BATCH, *SHAPE)
    laid = torch.empty(*SHAPE, BATCH).copy_(x.permute(1, 2, 3, 0)).permute(3, 0, 1, 2)
    given = {"torch": x, "native": laid}
    works = {
        "convolutions, forward and backward": {k: stack(k, v, True) for k, v in given.items()},
        "convolutions, forward": {k: stack(k, v, False) for k, v in given.items()},
        "images": images(),
        "SGD": steps(),
    }
    found: dict[str, Any] = {"vectors": loaded().variant, "torch": torch.__version__}
    for name, kinds in works.items():
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(turns):
            for kind, work in kinds.items():
                seconds[kind] += several(work)
        medians = {kind: 1e3 * statistics.median(values) for kind, values in seconds.items()}
        found[name] = {**medians, "torch / native": medians["torch"] / medians["native"]}
    return found


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--out", type=Path, default=HERE / "kernels.json")
    options = parser.parse_args()
    with exact_arithmetic():
        found = measure(options.turns)
    for name, values in found.items():
        if isinstance(values, dict):
            shown = f"torch {values['torch']:.3f} ms, native {values['native']:.3f} ms"
            print(f"{name:<36} {values['torch / native']:.1f} times faster   {shown}")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
