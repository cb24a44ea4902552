"""A FedAvg round of Coterie against a bare PyTorch loop that does the same steps.

    make bench DATA=DIR       real CIFAR-10 in DIR; without DATA, random images of the same shape

simple-cnn, 10 clients by Dirichlet(0.5), one local epoch, batch 64, two single-thread processes,
evaluation and checkpoints off. The contenders take turns, round by round, in one run; medians are
compared. Also: the round with crop-flip against the one without, the second loading of the data,
and the memory of a worker above that of an idle one. Writes JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.data import datasets
from coterie.data.datasets import Dataset
from coterie.experiment.config import resolve
from coterie.experiment.prepare import prepare

HERE = Path(__file__).parent
WORKERS = 2
IDLE = "import coterie.executors.worker, contender, os; print(contender.resident(os.getpid()))"


class Child:
    """A contender: a process that runs a round for every line it gets."""

    def __init__(
        self,
        script: str,
        task: Any,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self._script, self._log = script, log
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with log.open("wb") if log else nullcontext() as errors:
            self._process = subprocess.Popen(
                [python, str(HERE / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **threads, **(variables or {})},
            )
        self.send(json.dumps(task))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, line: str) -> None:
        """One line in."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def receive(self) -> str:
        """One line out."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(errors="replace")[-3000:] if self._log else ""
            sys.exit(f"{said}\n{self._script} ended before its round did")
        return line

    def close(self) -> None:
        """End it."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()


class Bare:
    """The bare loop in two processes; clients go, largest first, to the one with less to do."""

    def __init__(
        self,
        shards: list[list[int]],
        dataset: Dataset,
        script: str = "bare.py",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        piles: list[list[list[int]]] = [[] for _ in range(WORKERS)]
        for shard in sorted(shards, key=len, reverse=True):
            min(piles, key=lambda pile: sum(map(len, pile))).append(shard)
        common = {
            "x": str(dataset.path / "x_train.npy"),
            "y": str(dataset.path / "y_train.npy"),
            "mean": dataset.mean,
            "std": dataset.std,
            **(more or {}),
        }
        self.children = [Child(script, {**common, "clients": pile}) for pile in piles]

    def round(self) -> float:
        """Seconds of one round."""
        begin = time.perf_counter()
        for child in self.children:
            child.send("go")
        for child in self.children:
            assert child.receive() == "done\n"
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the processes."""
        for child in self.children:
            child.close()


class Coterie:
    """A run of Coterie that waits before every round."""

    def __init__(self, tables: dict[str, Any], folder: Path) -> None:
        self._child = child = Child("contender.py", {"tables": tables, "folder": str(folder)})
        self.children = [child]
        self.workers: list[int] = []

    def round(self) -> float:
        """Seconds of one round, as the run records them."""
        self._child.send("go")
        said = json.loads(self._child.receive())
        self.workers = said["workers"]
        return float(said["seconds"])

    def close(self) -> None:
        """End the run."""
        self._child.close()


def write_images(path: Path, samples: int) -> None:
    """Random images with labels: a step costs the same whatever they show."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", samples), ("test", 1000)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 10
    np.savez(path, **arrays)


def choose_data(folder: Path, root: Path | None, samples: int) -> dict[str, Any]:
    """The table `[data]`: CIFAR-10 in `root`, or without one as many random images."""
    if root is not None:
        return {"name": "cifar10", "root": str(root)}
    write_images(folder / "images.npz", samples)
    return {"name": "arrays", "root": str(folder / "images.npz")}


def take_turns(contenders: Mapping[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender's rounds but the first, which starts things."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, contender in contenders.items():
            seconds[name].append(contender.round())
    return {name: values[1:] for name, values in seconds.items()}


def setting(data: dict[str, Any], rounds: int, augment: str) -> dict[str, Any]:
    """The configuration of the comparison."""
    return {
        "run": {"rounds": rounds},
        "data": {**data, "augment": augment},
        "local": {"epochs": 1, "batch_size": 64, "lr": 0.01},
        "executor": {"workers": WORKERS},
        "evaluate": {"every": 0, "with": []},
        "checkpoint": {"every": 0},
    }


def measure(folder: Path, data: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The contenders by turns, the second loading of the data, a worker's memory."""
    plain = setting(data, rounds + 2, "none")
    experiment = prepare(resolve(plain), folder / "run")
    shards = [share.tolist() for share in experiment.partition.train.values()]
    begin = time.perf_counter()
    datasets.load(data["name"], data["root"])
    loading = time.perf_counter() - begin
    contenders: dict[str, Any] = {
        "bare": Bare(shards, experiment.dataset),
        "coterie": Coterie(plain, folder / "plain"),
        "coterie crop-flip": Coterie(setting(data, rounds + 2, "crop-flip"), folder / "augmented"),
    }
    seconds = take_turns(contenders, rounds)
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", IDLE]
    idle = int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    above = max(contenders["coterie"].workers) - idle
    for contender in contenders.values():
        contender.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds": seconds,
        "coterie / bare": medians["coterie"] / medians["bare"],
        "crop-flip / without": medians["coterie crop-flip"] / medians["coterie"],
        "second loading, seconds": loading,
        "worker above an idle one, MB": above / 1e6,
    }


def parse_arguments(page: str, name: str, rounds: int) -> argparse.Namespace:
    """Read the options that benchmarks of rounds on CIFAR-10 share."""
    parser = argparse.ArgumentParser(description=page.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--samples", type=int, default=50000, help="of random images")
    parser.add_argument("--out", type=Path, default=HERE / f"{name}.json")
    return parser.parse_args()


def main() -> None:
    """Measure, print, write JSON."""
    options = parse_arguments(__doc__, "round", 5)
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = choose_data(folder, options.data, options.samples)
        found = measure(folder, data, options.rounds)
    found["data"] = "CIFAR-10" if options.data else "random images"
    for name, values in found.pop("seconds").items():
        print(f"{name:<20} seconds a round: {', '.join(f'{v:.2f}' for v in values)}")
        found[f"seconds of {name}"] = values
    for name in ("coterie / bare", "crop-flip / without"):
        print(f"{name:<20} {found[name]:.3f}")
    print(f"second loading       {found['second loading, seconds']:.3f} s")
    print(f"worker above idle    {found['worker above an idle one, MB']:.0f} MB")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
