"""The representations of local models: what two clients' own models make of their own images.

FedProc's Figure 2 draws them for clients that train alone and for clients of a federation, beside
the global model's. The local model of a client in a federation is what the client makes of the
final global model in one round of its own training, with the settings of the last round.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coterie.core import exact, seeds
from coterie.core.bundle import Tensors
from coterie.core.errors import ConfigError, RunFailed
from coterie.core.files import replace_durably
from coterie.core.task import METHOD
from coterie.data.batches import DataShard
from coterie.engine.checkpoints import CheckpointStore
from coterie.experiment.config import Config
from coterie.experiment.prepare import Experiment, make_player, prepare
from coterie.experiment.run import MODEL
from coterie.kit.stages import plan_rounds
from coterie.report.page import document
from coterie.report.scatter import Scatter, in_plane
from coterie.reproduce.recipe import Features
from coterie.reproduce.run import Found
from coterie.reproduce.scatter import body

PAGE, ARRAYS, NUMBERS = "features.html", "features.npz", "features.json"


@dataclass(frozen=True)
class Panel:
    """One body of images under one model."""

    row: str
    client: int  # -1: the global model, on the test set
    z: np.ndarray
    y: np.ndarray

    @property
    def name(self) -> str:
        """In words."""
        return self.row + (f", client {self.client + 1}" if self.client >= 0 else ", global")


def write(found: Found, wanted: Features, folder: Path) -> str:
    """Write page, arrays and numbers of local models beside the outcome; these in a sentence."""
    panels = [panel for row in wanted.rows for panel in _row(found, row, wanted)]
    places = {row: embed([p for p in panels if p.row == row]) for row in wanted.rows}
    numbers = {row: agreement([p for p in panels if p.row == row]) for row in wanted.rows}
    shown = [
        Scatter(p.name, places[row][i], p.y, np.concatenate(places[row]))
        for row in wanted.rows
        for i, p in _of(panels, row)
    ]
    words = sentence(numbers)
    about = (
        "t-SNE of z by cosine, the panels of one method embedded together; colour and symbol are "
        "the class. Distances between far groups mean little in such a picture."
    )
    page = "\n".join(body(shown, "Features of local models", words, about))
    replace_durably(folder / PAGE, document("features of local models", page).encode())
    replace_durably(folder / NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode())
    arrays = {
        "features": np.concatenate([p.z for p in panels]),
        "clients": np.concatenate([np.full(len(p.y), p.client) for p in panels]),
    }
    save_arrays(folder / ARRAYS, shown, arrays)
    return words


def save_arrays(path: Path, shown: Sequence[Scatter], more: Mapping[str, np.ndarray]) -> None:
    """What the panels show, one after another, and more about each of their points."""
    arrays: dict[str, Any] = {
        **more,
        "classes": np.concatenate([one.classes for one in shown]),
        "panels": np.concatenate([np.full(len(one.classes), i) for i, one in enumerate(shown)]),
        "names": np.array([one.name for one in shown]),
        "places": np.concatenate([one.places for one in shown]),
    }
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _of(panels: Sequence[Panel], row: str) -> list[tuple[int, Panel]]:
    return list(enumerate(panel for panel in panels if panel.row == row))


def _row(found: Found, name: str, wanted: Features) -> list[Panel]:
    """The panels of a row: a local model for every client, and the global model if there is one."""
    config, folder = finished(found, name)
    with TemporaryDirectory() as scratch, exact.exact_arithmetic():
        experiment = prepare(config, Path(scratch))
        models = local_models(experiment, folder, wanted.clients)
        panels = [
            _panel(experiment, name, client, weights, wanted.count(found.plan.scale))
            for client, weights in models.items()
        ]
        if (folder / MODEL).is_file():
            weights = load_file(folder / MODEL)
            panels.append(_panel(experiment, name, -1, weights, wanted.count(found.plan.scale)))
    return panels


def finished(found: Found, name: str) -> tuple[Config, Path]:
    """The run of a row on the first seed: its configuration and its folder."""
    cell = next((c for c in found.plan.cells if c.row.name == name), None)
    point = found.chosen(cell) if cell else None
    runs = found.of(cell, point) if cell and point else {}
    if cell is None or point is None or 0 not in runs or runs[0].failure:
        raise RunFailed(f"there is no finished run of {name} to take features from")
    return found.plan.config(cell, point, 0), Path(runs[0].folder)


def local_models(
    experiment: Experiment, folder: Path, clients: Sequence[int]
) -> Mapping[int, Tensors]:
    """The clients' own models at the end of a run: kept ones, or made of the global model."""
    partition = experiment.partition
    for client in clients:
        if client not in partition.clients:
            raise ConfigError(f"features.clients = {client}: there is no such client")
    if experiment.parts.method.has("personal"):
        return {c: load_file(folder / "personal" / partition.file_name(c)) for c in clients}
    return {client: _trained(experiment, folder, client) for client in clients}


def _trained(experiment: Experiment, folder: Path, client: int) -> Tensors:
    """What a client makes of the final global model in a round like the last."""
    kept = CheckpointStore(folder).load_newest()
    if kept is None:
        raise RunFailed(f"{folder} holds no checkpoint")
    stages, clients = experiment.parts.stages(METHOD), len(experiment.partition.clients)
    stage, round = plan_rounds(stages, clients, experiment.config.run.seed)[-1]
    (reply,), _ = make_player(experiment).rehearse(stage, round, kept[0], [client])
    return reply.up["model"]


def _panel(experiment: Experiment, row: str, client: int, weights: Tensors, samples: int) -> Panel:
    """z of a seeded sample of a client's training images, or of the test set."""
    tests = np.arange(len(experiment.dataset.y_test))
    rows = experiment.partition.train[client] if client >= 0 else tests
    drawn = seeds.generator(0, "features", client=client + 1).permutation(rows)[:samples]
    return Panel(row, client, *projected(experiment, weights, drawn, test=client < 0))


def projected(
    experiment: Experiment, weights: Tensors, rows: np.ndarray, test: bool
) -> tuple[np.ndarray, np.ndarray]:
    """z of some training or test images under a model, and their classes."""
    dataset, nobody = experiment.dataset, np.empty(0, dtype=np.int64)
    if not test:
        dataset = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    shard = DataShard(dataset, nobody, rows)
    net = experiment.parts.nets(METHOD).frozen("model", weights, {})
    with experiment.parts.kernels():
        parts = [(net(batch).z, batch.y) for batch in shard.sweep(test=True)]
    z, y = (torch.cat(one).numpy() for one in zip(*parts, strict=True))
    experiment.parts.nets(METHOD).release()
    return z, y


def embed(panels: Sequence[Panel]) -> list[np.ndarray]:
    """Two coordinates for every point by t-SNE, the panels of a row together."""
    ends = np.cumsum([len(panel.y) for panel in panels])
    return np.split(in_plane(np.concatenate([panel.z for panel in panels])), ends[:-1])


def agreement(panels: Sequence[Panel]) -> dict[str, float]:
    """The mean cosine between class means of different local models: same class, other class."""
    local = [panel for panel in panels if panel.client >= 0]
    same: list[float] = []
    other: list[float] = []
    for first, second in pairwise(local):
        ours, theirs = _directions(first), _directions(second)
        for a, b in product(ours, theirs):
            (same if a == b else other).append(float(ours[a] @ theirs[b]))
    found = {"same class": same, "other class": other}
    return {name: fmean(values) for name, values in found.items() if values}


def _directions(panel: Panel) -> dict[int, np.ndarray]:
    means = {int(k): panel.z[panel.y == k].mean(axis=0) for k in np.unique(panel.y)}
    return {k: mean / max(float(np.linalg.norm(mean)), 1e-12) for k, mean in means.items()}


def sentence(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """The agreement of the clients' class means in words."""
    said = [
        f"{row}: {', '.join(f'{name} {value:.3f}' for name, value in found.items())}"
        for row, found in numbers.items()
    ]
    words = f"mean cosine between two clients' class means: {'; '.join(said)}."
    gaps = {
        row: found["same class"] - found["other class"]
        for row, found in numbers.items()
        if len(found) == 2  # two clients may have no class in common
    }
    if len(gaps) < len(numbers) or len(gaps) < 2:
        return words
    last, *others = sorted(gaps, key=list(numbers).index, reverse=True)
    holds = all(gaps[last] > gaps[row] for row in others)
    verdict = "holds" if holds else "does not hold"
    return (
        f"{words} {last} keeps one class of two clients together, and apart from the others, "
        f"better than {' and '.join(others)}: {verdict} (one seed)"
    )
