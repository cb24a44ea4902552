"""A SimSiam round with residual networks against a bare PyTorch loop that does the same steps.

    python benchmarks/speed/residual.py --data DIR       real CIFAR-10 in DIR; else random images

resnet8 (batches of 64) and resnet18 (batches of 32) with the stem for small images, 10 clients by
Dirichlet(0.5), one local epoch, two single-thread processes, evaluation and checkpoints off. The
contenders take turns, round by round, in one run; medians are compared. The bare loop is eager
torch in float32 and gets its views for nothing. Coterie takes part in each of `--precisions`, and
makes two views of every image with the augmentation `simsiam`; what that takes of a step is
measured by itself, in processor time. JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from round import HERE, WORKERS, Bare, Child, Coterie, choose_data, take_turns

from coterie.data.augment import AUGMENTS
from coterie.experiment.config import resolve
from coterie.experiment.prepare import prepare

BATCHES = {"resnet8": 64, "resnet18": 32}


def setting(
    data: dict[str, Any], net: str, samples: int, rounds: int, precision: str
) -> dict[str, Any]:
    """The configuration of the comparison."""
    return {
        "run": {"rounds": rounds},
        "data": {**data, "augment": "simsiam", "limit": samples},
        "net": {"backbone": net, "projection": 2048, "precision": precision},
        "objective": {"name": "simsiam"},
        "local": {"epochs": 1, "batch_size": BATCHES[net], "lr": 0.01, "weight_decay": 5e-4},
        "executor": {"workers": WORKERS},
        "evaluate": {"every": 0, "with": []},
        "checkpoint": {"every": 0},
    }


def time_views(batch: int, repeats: int = 30) -> float:
    """Processor seconds to make two views of a batch, the median."""
    transform, generator = AUGMENTS["simsiam"](), np.random.default_rng(0)
    images, rows, taken = torch.rand(batch, 3, 32, 32), torch.arange(batch), []
    for _ in range(repeats):
        begin = time.process_time()
        for _ in range(2):
            transform(images, rows, transform.draw(batch, generator))
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def measure(
    folder: Path,
    data: dict[str, Any],
    net: str,
    samples: int,
    rounds: int,
    precisions: Sequence[str],
) -> dict[str, Any]:
    """The contenders by turns, and what the views take of a step, by precision."""
    tables = {each: setting(data, net, samples, rounds + 2, each) for each in precisions}
    experiment = prepare(resolve(tables[precisions[0]]), folder / "run")
    shards = [share.tolist() for share in experiment.partition.train.values()]
    more = {"net": net, "batch": BATCHES[net]}
    contenders: dict[str, Child] = {
        "bare": Bare(shards, experiment.dataset, "bare_simsiam.py", more)
    }
    for each in precisions:
        contenders[each] = Coterie(tables[each], folder / f"{net}-{each}")
    seconds = take_turns(contenders, rounds)
    for contender in contenders.values():
        contender.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    steps = sum(-(-len(shard) // BATCHES[net]) for shard in shards)
    views = time_views(BATCHES[net]) * steps / WORKERS
    return {
        "samples": samples,
        "seconds": seconds,
        "coterie / bare": {each: medians[each] / medians["bare"] for each in precisions},
        "views / step": {each: views / medians[each] for each in precisions},
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--nets", nargs="+", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=HERE / "residual.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = choose_data(folder, options.data, options.samples)
        for net in options.nets:
            settings = options.samples, options.rounds, options.precisions
            figures[net] = measure(folder, data, net, *settings)
            for contender, values in figures[net]["seconds"].items():
                print(f"{net} {contender:<8} seconds: {', '.join(f'{v:.2f}' for v in values)}")
            for each, ratio in figures[net]["coterie / bare"].items():
                views = figures[net]["views / step"][each]
                print(f"{net} {each} coterie / bare {ratio:.3f}, views {views:.3f} of a step")
    figures["data"] = "CIFAR-10" if options.data else "random images"
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
