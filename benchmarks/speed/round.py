"""A FedAvg round of Coterie against a bare PyTorch loop that does the same steps.

    python benchmarks/speed/round.py [--rounds 5] [--samples 50000] [--out FILE.json]

Both train simple-cnn for one epoch on images of 3 x 32 x 32 divided among 10 clients by
Dirichlet(0.5), batch 64, in two single-thread processes. Rounds are interleaved in one run;
medians are compared. Evaluation and checkpoints are off.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import coterie
from coterie.config import resolve
from coterie.data.datasets import Dataset
from coterie.engine.record import Event, RoundEvent
from coterie.experiment import prepare

BARE = Path(__file__).with_name("bare.py")
WORKERS = 2


class Bare:
    """The bare loop in two processes; the clients are dealt largest first to the less loaded."""

    def __init__(self, shards: list[list[int]], dataset: Dataset) -> None:
        piles: list[list[list[int]]] = [[] for _ in range(WORKERS)]
        for shard in sorted(shards, key=len, reverse=True):
            min(piles, key=lambda pile: sum(map(len, pile))).append(shard)
        self._processes = []
        for pile in piles:
            task = {
                "x": str(dataset.path / "x_train.npy"),
                "y": str(dataset.path / "y_train.npy"),
                "mean": dataset.mean,
                "std": dataset.std,
                "clients": pile,
            }
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, str(BARE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            process.stdin.write(json.dumps(task) + "\n")
            self._processes.append(process)

    def round(self) -> float:
        """Seconds of one round."""
        begin = time.perf_counter()
        for process in self._processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout.readline() == "done\n"
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.stdin.close()
            process.wait()


def write_images(path: Path, samples: int) -> None:
    """Random images with labels: a step costs the same whatever they show."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", samples), ("test", 1000)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 10
    np.savez(path, **arrays)


def measure(folder: Path, rounds: int, samples: int) -> dict[str, list[float]]:
    """Interleaved seconds of both; the first round of each, which starts things, is left out."""
    write_images(folder / "images.npz", samples)
    tables = {
        "run": {"rounds": rounds + 1},
        "data": {"name": "arrays", "root": str(folder / "images.npz")},
        "local": {"epochs": 1, "batch_size": 64, "lr": 0.01},
        "executor": {"workers": WORKERS},
        "evaluate": {"every": 0, "with": []},
        "checkpoint": {"every": 0},
    }
    experiment = prepare(resolve(tables), folder / "run")
    shards = [share.tolist() for share in experiment.partition.train.values()]
    bare = Bare(shards, experiment.dataset)
    seconds: dict[str, list[float]] = {"coterie": [], "bare": []}

    def record(event: Event) -> None:
        if isinstance(event, RoundEvent):
            seconds["coterie"].append(event.seconds)
            seconds["bare"].append(bare.round())

    coterie.run(tables, out=folder / "run", recorders=[record])
    bare.close()
    return {name: values[1:] for name, values in seconds.items()}


def main() -> None:
    """Measure, print the ratio, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=50000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/speed/round.json"))
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        seconds = measure(Path(name), options.rounds, options.samples)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["coterie"] / medians["bare"]
    for name, values in seconds.items():
        print(f"{name:<8} median {medians[name]:.2f} s of {[round(v, 2) for v in values]}")
    print(f"a round of Coterie takes {ratio:.3f} times the bare loop's")
    options.out.write_text(json.dumps({"seconds": seconds, "ratio": ratio}, indent=1) + "\n")


if __name__ == "__main__":
    main()
