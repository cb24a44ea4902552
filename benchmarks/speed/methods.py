"""A round of each contrastive method against a FedAvg round, with and without augmentation.

    make bench DATA=DIR       real CIFAR-10 in DIR; without DATA, random images of the same shape

simple-cnn, 10,000 images, 10 clients by Dirichlet(0.5), 10 local epochs, batch 64, two
single-thread processes, evaluation and checkpoints off. The contenders take turns, round by round,
in one run; the first round, which has neither previous models nor prototypes, is left out, and the
medians of the others are compared. Writes JSON.
"""

import argparse
import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from round import HERE, WORKERS, Coterie, choose_data, take_turns

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "moon": {"name": "moon"},
    "fedproc": {"name": "fedproc"},
    "fedssc without MOON's term": {"name": "fedssc", "mu_moon": 0.0},
}
IMAGES = 10000


def setting(data: dict[str, Any], rounds: int, augment: str, method: str) -> dict[str, Any]:
    """The configuration of one contender."""
    return {
        "run": {"rounds": rounds},
        "data": {**data, "augment": augment, "limit": IMAGES},
        "method": METHODS[method],
        "local": {"epochs": 10, "batch_size": 64, "lr": 0.01},
        "executor": {"workers": WORKERS},
        "evaluate": {"every": 0, "with": []},
        "checkpoint": {"every": 0},
    }


def measure(folder: Path, data: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of every round but the first, by method and augmentation."""
    contenders = {
        f"{method}, {augment}": Coterie(
            setting(data, rounds + 2, augment, method), folder / f"{index}-{augment}"
        )
        for augment in ("crop-flip", "none")
        for index, method in enumerate(METHODS)
    }
    seconds = take_turns(contenders, rounds)
    for contender in contenders.values():
        contender.close()
    return seconds


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "methods.json")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = choose_data(folder, options.data, IMAGES)
        seconds = measure(folder, data, options.rounds)
    ratios = {}
    for name, values in seconds.items():
        method, augment = name.rsplit(", ", 1)
        base = statistics.median(seconds[f"fedavg, {augment}"])
        ratios[name] = statistics.median(values) / base
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"{method:<28} {augment:<10} {ratios[name]:.3f}   seconds a round: {shown}")
    found = {"data": "CIFAR-10" if options.data else "random images", "images": IMAGES}
    found |= {"round / FedAvg's round": ratios, "seconds": seconds}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
