"""Images per second of the augmentation "simsiam", beside kornia's for the same operations.

    pip install kornia && python benchmarks/speed/augment.py

Random resized crop, mirror, colour jitter and grey on batches of 256 images of 3 x 32 x 32 floats,
one thread, one draw per image; drawing counts. kornia crops in two ways, by slices and by
resampling; both are measured. The contenders take turns, batch by batch, in one run, and medians
are compared. A second is one of the processor, so that other processes count less. Writes JSON.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.augment import AUGMENTS

BATCH = 256
OURS = "coterie"
HERE = Path(__file__).parent


def ours() -> Callable[[Tensor], Tensor]:
    """Draw a table for the batch, then apply it."""
    transform, generator = AUGMENTS["simsiam"](), np.random.default_rng(0)
    rows = torch.arange(BATCH)
    return lambda images: transform(images, rows, transform.draw(BATCH, generator))


def theirs() -> tuple[dict[str, Callable[[Tensor], Tensor]], str]:
    """kornia's operations with the same parameters, and its version."""
    try:
        import kornia
        from kornia import augmentation
    except ImportError:
        sys.exit("this benchmark needs kornia: pip install kornia")
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    for mode in ("slice", "resample"):
        crop = augmentation.RandomResizedCrop(
            (32, 32), (0.2, 1.0), (3 / 4, 4 / 3), same_on_batch=False, cropping_mode=mode
        )
        found[f"kornia, {mode}"] = torch.nn.Sequential(
            crop,
            augmentation.RandomHorizontalFlip(p=0.5, same_on_batch=False),
            augmentation.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8, same_on_batch=False),
            augmentation.RandomGrayscale(p=0.2, same_on_batch=False),
        )
    return found, str(kornia.__version__)


def measure(contenders: dict[str, Callable[[Tensor], Tensor]], batches: int) -> dict[str, float]:
    """The median over the batches of the images per second, by contender."""
    images = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(batches + 3):
        for name, contender in contenders.items():
            start = time.process_time()
            found = contender(images)
            seconds = time.process_time() - start
            assert found.shape == images.shape
            if turn >= 3:  # the first ones warm up
                rates[name].append(BATCH / seconds)
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--out", type=Path, default=HERE / "augment.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    others, version = theirs()
    with torch.inference_mode():
        rates = measure({OURS: ours(), **others}, options.batches)
    ratios = {name: rates[OURS] / rates[name] for name in others}
    for name, rate in rates.items():
        print(f"{name:<18}{rate:7.0f} images per second")
    for name, ratio in ratios.items():
        print(f"{OURS} / {name}: {ratio:.2f}")
    found: dict[str, Any] = {"images per second": rates, "coterie's rate to that of": ratios}
    found |= {"batches": options.batches, "images in a batch": BATCH}
    found |= {"kornia": version, "torch": str(torch.__version__)}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
