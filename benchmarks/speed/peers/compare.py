"""A FedAvg round of Coterie, pfl-research, Flower and a bare loop; then MOON's.

    make bench-peers DATA=DIR       DIR holds CIFAR-10

All do the same work, from the same weights, on the same division of the same images, on two cores:
10 clients by Dirichlet(0.5), simple-cnn with projector and classifier, batch 64. FedAvg: all
images, one local epoch, no augmentation. MOON: 10,000 images, 10 epochs, crop and flip, against a
plain PyTorch loop. No evaluation, no checkpoints. The contenders take turns, round by round, and
one clock measures all: from the line that lets a round go to the answer that it is done. The first
round of each, which starts things, is left out; medians are compared. Writes JSON.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from contenders import HERE, Flower, OwnRun, Pfl, PlainLoop
from environments import environment, versions
from methods import IMAGES
from methods import setting as ten_epochs
from processes import used
from round import Bare, setting
from shared import BATCH, Samples, accuracy

import coterie
from coterie.core.task import METHOD
from coterie.data.batches import cut
from coterie.experiment.config import resolve
from coterie.experiment.prepare import Experiment, prepare

OURS, BARE, PFL, FLOWER = "Coterie", "bare loop", "pfl-research", "Flower"
MOON, FEDAVG = "Coterie, MOON", "Coterie, FedAvg"
PLAIN_MOON, PLAIN_FEDAVG = "plain MOON", "plain FedAvg"


class Field:
    """What all contenders of one comparison start from."""

    def __init__(self, tables: dict[str, Any], folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.experiment = prepare(resolve(tables), folder / "prepared")
        self.shares = [share.tolist() for share in self.experiment.partition.train.values()]
        nets, method = self.experiment.parts.nets(METHOD), self.experiment.parts.method
        start = method.model(method.init(nets))
        assert start is not None
        self.names = list(nets["model"].state_dict())
        vector = torch.cat([start[name].reshape(-1) for name in self.names])
        self.start = vector.numpy()
        np.save(folder / "start.npy", self.start)
        dataset, local = self.experiment.dataset, self.experiment.config.local
        epochs = local.epochs
        self.steps = epochs * sum(len(cut(len(s), BATCH, local.drop_last)) for s in self.shares)
        self.task = {
            "x": str(dataset.path / "x_train.npy"),
            "y": str(dataset.path / "y_train.npy"),
            "mean": dataset.mean,
            "std": dataset.std,
            "start": str(folder / "start.npy"),
            "clients": self.shares,
            "rounds": self.experiment.config.run.rounds,
        }

    def own(self, tables: dict[str, Any], name: str) -> OwnRun:
        """A run of Coterie."""
        return OwnRun(tables, self.folder / name, self.names, self.steps)

    def score(self, weights: np.ndarray) -> float:
        """The accuracy on the test images."""
        return accuracy(weights, *tests(self.experiment))


def tests(experiment: Experiment) -> tuple[torch.Tensor, torch.Tensor]:
    """The test images as the training ones are made ready."""
    dataset = experiment.dataset
    files = {"x": str(dataset.path / "x_test.npy"), "y": str(dataset.path / "y_test.npy")}
    samples = Samples({**files, "mean": dataset.mean, "std": dataset.std})
    return samples.share(list(range(len(dataset.y_test))))


class Turn(NamedTuple):
    """What a round took."""

    seconds: float
    processor: float  # seconds of it, of all its processes
    before: float  # the same since its turn before: what it did in the turns of others


def take_turns(contenders: Mapping[str, Any], rounds: int) -> dict[str, list[Turn]]:
    """Every round but the first."""
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    pids = {name: [child.pid for child in one.children] for name, one in contenders.items()}
    left = {name: used(pids[name]) for name in contenders}
    for _ in range(rounds + 1):
        for name, contender in contenders.items():
            before = used(pids[name])
            begin = time.perf_counter()
            contender.round()
            seconds = time.perf_counter() - begin
            after = used(pids[name])
            turns[name].append(Turn(seconds, after - before, before - left[name]))
            left[name] = after
            print(f"  {name}: {seconds:.2f} s", file=sys.stderr, flush=True)
    for contender in contenders.values():
        contender.close()
    return {name: values[1:] for name, values in turns.items()}


def findings(
    field: Field, contenders: Mapping[str, Any], turns: dict[str, list[Turn]], *bases: str
) -> dict[str, Any]:
    """Medians, ratios, what was allowed and what came of it, by contender."""
    medians = {name: statistics.median(t.seconds for t in own) for name, own in turns.items()}
    found: dict[str, Any] = {}
    ours = contenders[bases[0]].weights() - field.start
    for name, contender in contenders.items():
        own = turns[name]
        found[name] = {"seconds a round": medians[name], "rounds": [t.seconds for t in own]}
        found[name] |= {f"to {base}": medians[name] / medians[base] for base in bases}
        found[name]["processor seconds a round"] = statistics.median(t.processor for t in own)
        found[name]["processor seconds between rounds"] = statistics.median(t.before for t in own)
        if isinstance(contender, Bare):  # it averages nothing
            steps = sum(-(-len(share) // BATCH) for share in field.shares)
            found[name] |= {"allowed": PlainLoop.allowed, "steps a round": steps}
            continue
        found[name] |= {"allowed": contender.allowed, "steps a round": contender.steps()}
        weights = contender.weights()
        found[name]["test accuracy after the rounds"] = field.score(weights)
        found[name][f"cosine of what was learned to {bases[0]}"] = cosine(
            weights - field.start, ours
        )
    return found


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    """1 where two have moved in the same direction: they differ by the order of images alone."""
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures in columns, ready for a page."""
    keys = [key for key in next(iter(found.values())) if key.startswith("to ")]
    lines = [["", "seconds a round", *keys, "accuracy"], ["---", *["--:"] * (len(keys) + 2)]]
    for name, row in found.items():
        right = row.get("test accuracy after the rounds")
        ratios = [f"{row[key]:.2f}" for key in keys]
        shown = "" if right is None else f"{right:.3f}"
        lines.append([name, f"{row['seconds a round']:.2f}", *ratios, shown])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def fedavg(folder: Path, data: dict[str, Any], rounds: int, pfl_workers: int) -> dict[str, Any]:
    """One epoch over all images."""
    tables = setting(data, rounds + 1, "none")
    field = Field(tables, folder)
    contenders = {
        OURS: field.own(tables, "coterie"),
        BARE: Bare(field.shares, field.experiment.dataset),
        PFL: Pfl(field.task, folder / "pfl", pfl_workers),
        FLOWER: Flower(field.task, folder / "flower"),
    }
    turns = take_turns(contenders, rounds)
    return findings(field, contenders, turns, OURS, BARE)


def moon(folder: Path, data: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Ten augmented epochs over some images, with and without MOON's term."""
    tables = {
        name: ten_epochs(data, rounds + 1, "crop-flip", method)
        for name, method in ((MOON, "moon"), (FEDAVG, "fedavg"))
    }
    for table in tables.values():
        table["data"]["limit"] = min(IMAGES, data.get("limit", IMAGES))
    field = Field(tables[MOON], folder)
    contenders = {
        MOON: field.own(tables[MOON], "moon"),
        FEDAVG: field.own(tables[FEDAVG], "fedavg"),
        PLAIN_MOON: PlainLoop(field.task, folder / "plain-moon", moon=True),
        PLAIN_FEDAVG: PlainLoop(field.task, folder / "plain-fedavg", moon=False),
    }
    turns = take_turns(contenders, rounds)
    return findings(field, contenders, turns, MOON, FEDAVG, PLAIN_MOON, PLAIN_FEDAVG)


def surroundings(tables: dict[str, Any]) -> dict[str, Any]:
    """Versions and the machine."""
    found: dict[str, Any] = {
        "coterie": coterie.__version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "machine": processor(),
        "environment of pfl-research": json.loads(
            versions(environment("pfl"), "pfl", "torch", "numpy")
        ),
        "environment of Flower": json.loads(
            versions(environment("flower"), "flwr", "ray", "torch", "numpy")
        ),
    }
    net = resolve(tables).tables["net"]
    return found | {"net.kernel": net["kernel"]} if "kernel" in net else found


def processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=3, help="that count; one more warms up")
    parser.add_argument("--pfl-workers", type=int, choices=(1, 2), default=2)
    parser.add_argument("--limit", type=int, help="images, for a trial")
    parser.add_argument("--only", choices=("fedavg", "moon"), help="half of it, for a trial")
    parser.add_argument("--out", type=Path, help="peers.json here, unless it is a trial")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("pfl", "flower"):
        environment(name)
    data: dict[str, Any] = {"name": "cifar10", "root": str(options.data)}
    if options.limit:
        data["limit"] = options.limit
    found: dict[str, Any] = {"data": "CIFAR-10"}
    found["versions"] = surroundings(setting(data, 1, "none"))
    whole = options.only is None and options.limit is None
    out = options.out or (HERE.parent / "peers.json" if whole else None)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if options.only != "moon":
            found["FedAvg"] = fedavg(folder / "fedavg", data, options.rounds, options.pfl_workers)
            print(f"FedAvg, one epoch\n\n{table(found['FedAvg'])}\n", flush=True)
            write(out, found)
        if options.only != "fedavg":
            found["MOON"] = moon(folder / "moon", data, options.rounds)
            print(f"MOON, ten augmented epochs\n\n{table(found['MOON'])}", flush=True)
            write(out, found)


def write(out: Path | None, found: Mapping[str, Any]) -> None:
    """What is known so far."""
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
