"""A federated problem that takes milliseconds: three clouds of points, six clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.engine.record import Event, NoteEvent, RoundEvent, StartEvent
from coterie.experiment.config import resolve
from coterie.experiment.prepare import Experiment, prepare
from coterie.experiment.result import Result

CLASSES, ENTRIES, CLIENTS = 3, 6, 6


def write_data(path: Path, train: int = 180, test: int = 60) -> Path:
    """Points around a centre per class, as an .npz file."""
    generator = np.random.default_rng(7)
    centres = generator.normal(size=(CLASSES, ENTRIES)) * 1.5
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        y = np.arange(count) % CLASSES
        noise = generator.normal(size=(count, ENTRIES))
        arrays[f"x_{part}"] = (centres[y] + noise).astype(np.float32)
        arrays[f"y_{part}"] = y
    np.savez(path, **arrays)
    return path


def tables(data: Path, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The toy configuration, with tables changed."""
    base: dict[str, dict[str, Any]] = {
        "run": {"rounds": 4, "seed": 5},
        "data": {"name": "arrays", "root": str(data)},
        "partition": {"kind": "dirichlet", "clients": CLIENTS, "beta": 1.0, "min_samples": 4},
        "net": {"backbone": "mlp", "projection": 8, "norm": "none"},
        "method": {"name": "fedavg"},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
        "executor": {"kind": "serial"},
        "checkpoint": {"every": 2},
        "record": {"embedding": 0},  # its picture takes longer than the whole run
    }
    for name, change in changes.items():
        base[name] = {**base.get(name, {}), **change}
    return base


def run(
    data: Path, out: Path, *, resume: bool = False, recorders: Any = (), **changes: Any
) -> Result:
    """Run the toy configuration."""
    return coterie.run(tables(data, **changes), out=out, resume=resume, recorders=recorders)


def prepared(data: Path, folder: Path, **changes: Any) -> Experiment:
    """The toy configuration, ready to start: its data, partition and networks."""
    return prepare(resolve(tables(data, **changes)), folder)


def trace(folder: Path) -> list[dict[str, Any]]:
    """The events of a run, less what the clock says."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


def outputs(folder: Path) -> dict[str, bytes]:
    """The bytes of every model that a run left."""
    weights = [*folder.glob("*.safetensors"), *folder.glob("personal/*")]
    assert weights, f"{folder} holds no model"
    paths = [*sorted(weights), folder / "model.json"]
    return {path.name: path.read_bytes() for path in paths}


class Killed(BaseException):
    """The process is gone: nothing may be committed any more."""


class StopAfter:
    """A recorder that stops the run when a round is recorded."""

    def __init__(self, round: int, by: type[BaseException]) -> None:
        self.round, self.by = round, by

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEvent) and event.round == self.round:
            raise self.by


class Starts:
    """A recorder of the first round of every start, counted from 0, and of what users are told."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.notes: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, StartEvent):
            self.rounds.append(event.first)
        elif isinstance(event, NoteEvent):
            self.notes.append(event.text)
