"""How the cost of a round grows with the number of clients.

    make bench-growth DATA=DIR      DIR holds CIFAR-10; without DATA: random images of its shape

Two series. "all take part": 10,000 images are divided among 10, 100 and 1,000 clients, FedAvg, all
of them in every round, one local epoch, batch 10, so that the steps of a round are the same 1,000.
"100 take part": MOON, whose clients remember their last model, on images of 8 x 8 with 10 for each
client: 100 clients a round, out of 100, 1,000 and 10,000. simple-cnn, two workers, checkpoints as
usual, no evaluation. Every run is a process of its own: 10 rounds where all take part, 24 where
some do, the first two of which do not count. Writes JSON and a picture.
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
from typing import Any

import numpy as np
from growth_picture import draw
from processes import descendants, memory, used
from round import HERE, WORKERS, write_images

import coterie
from coterie.engine.record import Event, RoundEvent, StartEvent

ALL, SOME = "all take part", "100 take part"
CLIENTS = {ALL: (10, 100, 1000), SOME: (100, 1000, 10000)}
ROUNDS = {ALL: 10, SOME: 24}
IMAGES, INVITED, EACH = 10000, 100, 10
SETTLED = 2  # rounds that start things: workers load libraries, states begin


def on_disk(folder: Path) -> dict[str, int]:
    """Bytes and files of a run directory, clients' states apart."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    states = [path for path in files if "clients" in path.relative_to(folder).parts]
    return {
        "bytes": sum(path.stat().st_size for path in files),
        "bytes of clients' states": sum(path.stat().st_size for path in states),
        "clients with a state": len({path.parent for path in states}),
    }


class Watch:
    """A recorder of times and memory."""

    def __init__(self) -> None:
        self.begin = self.last = time.perf_counter()
        self.preparing = self.used = 0.0
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.own: list[dict[str, int]] = []
        self.workers: list[dict[str, int]] = []

    def __call__(self, event: Event) -> None:
        """After every round, from the end of the one before: what is committed counts."""
        if isinstance(event, StartEvent):
            self.preparing = time.perf_counter() - self.begin
        elif isinstance(event, RoundEvent):
            self.seconds.append(time.perf_counter() - self.last)
            so_far = used([os.getpid()])
            self.processor.append(so_far - self.used)
            self.used = so_far
            own, *workers = descendants([os.getpid()])
            self.own.append(memory(own))
            every = [memory(pid) for pid in workers]
            self.workers.append({k: max(one[k] for one in every) for k in every[0]})
        else:
            return
        self.last = time.perf_counter()

    def found(self, folder: Path) -> dict[str, Any]:
        """The figures of a finished run."""
        seconds = self.seconds[SETTLED:]
        half = len(seconds) // 2
        return {
            "seconds a round": statistics.median(seconds),
            "processor seconds a round": statistics.median(self.processor[SETTLED:]),
            "of the first half, and of the second": [
                statistics.median(seconds[:half]),
                statistics.median(seconds[half:]),
            ],
            "longest round": max(seconds),
            "seconds before the first round": self.preparing,
            "seconds after the last round": time.perf_counter() - self.last,
            "main process, bytes": _peaks(self.own),
            "largest worker, bytes": _peaks(self.workers),
            "run directory": on_disk(folder),
        }


def _peaks(seen: list[dict[str, int]]) -> dict[str, Any]:
    """The most, and how much of it came after the settled rounds."""
    return {
        key: {
            "peak": max(one[key] for one in seen),
            "grown since settled": seen[-1][key] - seen[SETTLED][key],
        }
        for key in seen[0]
    }


def setting(series: str, clients: int, rounds: int, data: dict[str, Any]) -> dict[str, Any]:
    """The configuration of one run."""
    tables: dict[str, Any] = {
        "run": {"rounds": rounds},
        "data": {**data, "augment": "none"},
        "partition": {"kind": "iid", "clients": clients},
        "method": {"name": "fedavg" if series == ALL else "moon"},
        "local": {"epochs": 1, "batch_size": EACH, "lr": 0.01},
        "executor": {"workers": WORKERS},
        "evaluate": {"every": 0, "with": []},
    }
    if series == ALL:
        tables["data"]["limit"] = IMAGES
    else:
        tables["cohort"] = {"fraction": INVITED / clients}
    return tables


def write_small(path: Path, clients: int) -> None:
    """Random images of the size of the digits, some for each client."""
    draws = np.random.default_rng(0)
    x = draws.integers(0, 256, size=(clients * EACH, 8, 8), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])


def run_one(tables: dict[str, Any], folder: Path) -> None:
    """In a process of its own: one run, its figures on standard output."""
    watch = Watch()
    coterie.run(tables, out=folder, recorders=[watch])
    print(json.dumps(watch.found(folder)), flush=True)


def measure(series: str, clients: int, rounds: int, data: Path | None) -> dict[str, Any]:
    """One run, in a process of its own."""
    with TemporaryDirectory() as name:
        source = {"name": "arrays", "root": str(Path(name) / "images.npz")}
        if series == SOME:
            write_small(Path(name) / "images.npz", clients)
        elif data is None:
            write_images(Path(name) / "images.npz", IMAGES)
        else:
            source = {"name": "cifar10", "root": str(data)}
        tables = setting(series, clients, rounds, source)
        task = json.dumps({"tables": tables, "folder": str(Path(name) / "run")})
        command = [sys.executable, __file__, "--task", task]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"clients": clients, "a round": clients if series == ALL else INVITED, **found}


def line(series: str, row: dict[str, Any]) -> str:
    """One run in words."""
    disk, megabyte = row["run directory"], 1e6
    return (
        f"{series:<15}{row['clients']:>6} clients  {row['seconds a round']:6.2f} s a round, "
        f"{row['processor seconds a round']:5.2f} of the processor   main "
        f"{row['main process, bytes']['RssAnon']['peak'] / megabyte:4.0f} MB   worker "
        f"{row['largest worker, bytes']['RssAnon']['peak'] / megabyte:4.0f} MB   on disk "
        f"{disk['bytes'] / megabyte:6.1f} MB, {disk['clients with a state']} clients with a state"
    )


def main() -> None:
    """Measure, print, write JSON and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--out", type=Path, default=HERE / "growth.json")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        task = json.loads(options.task)
        run_one(task["tables"], Path(task["folder"]))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for series, counts in CLIENTS.items():
        for clients in counts:
            row = measure(series, clients, ROUNDS[series], options.data)
            found.setdefault(series, []).append(row)
            print(line(series, row), flush=True)
    said = {"data": "CIFAR-10" if options.data else "random images", "rounds": ROUNDS}
    options.out.write_text(json.dumps({**said, "runs": found}, indent=1) + "\n")
    options.out.with_suffix(".svg").write_text(draw(found))


if __name__ == "__main__":
    main()
