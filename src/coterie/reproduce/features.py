"""Draws the representations of local or global models, and puts them into numbers.

FedProc's Figure 2 draws those of local models: of clients that train alone, and of clients of a
federation, beside the global model's. The local model of a client in a federation is what the
client makes of the final global model in one round of its own training, with the settings of the
last round. MFCL's Figure 6 draws those of global models (`clusters.py`).
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
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
from coterie.report.page import format_figures, format_note, make_document
from coterie.report.scatter import Scatter, chart_points, embed_in_plane
from coterie.reproduce.clusters import NEIGHBOURS, count_clusters, describe_clusters
from coterie.reproduce.recipe import Features
from coterie.reproduce.scores import Scores

PAGE, ARRAYS, NUMBERS = "features.html", "features.npz", "features.json"
GLOBAL = -1  # instead of a client
_ABOUT_LOCAL = (
    "t-SNE of z by cosine, the panels of one method embedded together; colour and symbol are "
    "the class. Distances between far groups mean little in such a picture."
)
_ABOUT_GLOBAL = (
    "t-SNE by cosine, every panel by itself: of z, behind the projector, for training images of "
    "all clients; of the images themselves where it says so. Colour and symbol are the class. A "
    f"class is distinguishable if more than half of the {NEIGHBOURS} nearest points of its points, "
    "on average, are of the same class."
)


@dataclass(frozen=True)
class Panel:
    """The representations of some images under one model."""

    row: str
    client: int  # whose model and images; GLOBAL: the global model, on the test set
    z: np.ndarray
    y: np.ndarray

    @property
    def name(self) -> str:
        """Row and client, for people."""
        client = "global" if self.client == GLOBAL else f"client {self.client + 1}"
        return f"{self.row}, {client}"


@dataclass(frozen=True)
class _Picture:
    """What is written: panels, and what is said about them."""

    title: str
    about: str
    summary: str
    numbers: Mapping[str, Any]
    panels: Sequence[Scatter]
    arrays: Mapping[str, np.ndarray]  # more about the points of all panels


def write_features(scores: Scores, wanted: Features, folder: Path) -> str:
    """Write page, arrays and numbers beside the outcome, of the rows that were run.

    Returns a sentence about the numbers.
    """
    run = [cell.row.name for cell in scores.study.cells]
    rows = tuple(row for row in wanted.rows if row in run)
    if not rows:
        return f"there is no picture of features: none of {', '.join(wanted.rows)} was asked for"
    draw = _draw_global if wanted.of == "global" else _draw_local
    picture = draw(scores, replace(wanted, rows=rows))
    body = (
        f"<h1>{escape(picture.title)}</h1>",
        f'<p class="soft">{escape(picture.summary)}</p>',
        format_note(picture.about),
        format_figures([chart_points(scatter) for scatter in picture.panels], "charts small"),
    )
    page = make_document(picture.title.lower(), "\n".join(body))
    replace_durably(folder / PAGE, page.encode())
    replace_durably(folder / NUMBERS, (json.dumps(picture.numbers, indent=1) + "\n").encode())
    arrays = {
        **picture.arrays,
        "classes": np.concatenate([p.classes for p in picture.panels]),
        "panels": np.concatenate(
            [np.full(len(p.classes), i) for i, p in enumerate(picture.panels)]
        ),
        "names": np.array([p.name for p in picture.panels]),
        "places": np.concatenate([p.points for p in picture.panels]),
    }
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    replace_durably(folder / ARRAYS, file.getvalue())
    return picture.summary


def _draw_local(scores: Scores, wanted: Features) -> _Picture:
    """Draw every row's local and global models in one plane."""
    samples = wanted.samples_at(scores.study.scale)
    shown, numbers = list[Scatter](), dict[str, Mapping[str, float]]()
    drawn = list[Panel]()
    for row in wanted.rows:
        panels = _make_panels(scores, row, wanted.clients, samples)
        points = embed(panels)
        together = np.concatenate(points)
        shown += [
            Scatter(p.name, own, p.y, together) for p, own in zip(panels, points, strict=True)
        ]
        numbers[row] = measure_agreement(panels)
        drawn += panels
    arrays = {
        "features": np.concatenate([p.z for p in drawn]),
        "clients": np.concatenate([np.full(len(p.y), p.client) for p in drawn]),
    }
    summary = describe_agreement(numbers)
    return _Picture("Features of local models", _ABOUT_LOCAL, summary, numbers, shown, arrays)


def _draw_global(scores: Scores, wanted: Features) -> _Picture:
    """Draw every row's global model on training images of all clients, in a plane of its own."""
    scale = scores.study.scale
    samples = wanted.samples_at(scale)
    shown, clients = list[Scatter](), list[np.ndarray]()

    def add(name: str, vectors: np.ndarray, y: np.ndarray, owners: np.ndarray) -> None:
        points = embed_in_plane(vectors)
        shown.append(Scatter(name, points, y, points))
        clients.append(owners)

    for row in wanted.rows:
        config, folder = find_run(scores, row)
        with TemporaryDirectory() as scratch, exact.exact_arithmetic():
            experiment = prepare(config, Path(scratch))
            train = experiment.partition.train
            if wanted.raw and not shown:
                first = wanted.clients[0]
                drawn = seeds.generator(0, "raw").permutation(train[first])[:samples]
                images = np.asarray(experiment.dataset.x_train[drawn], np.float32)
                labels = np.asarray(experiment.dataset.y_train[drawn])
                flat, owners = images.reshape(len(drawn), -1), np.full(len(drawn), first)
                add(f"images of client {first + 1}", flat, labels, owners)
            if not (folder / MODEL).is_file():
                raise RunFailed(f"{row} has no global model to take features from")
            owners = np.concatenate([np.full(len(rows), who) for who, rows in train.items()])
            rows = np.concatenate(list(train.values()))
            drawn = seeds.generator(0, "clusters").permutation(len(rows))[:samples]
            z, y = project(experiment, load_file(folder / MODEL), rows[drawn], test=False)
        add(row, z, y, owners[drawn])
    counts = {p.name: count_clusters(p.points, p.classes) for p in shown}
    summary = describe_clusters(counts, wanted.rows if scale != "smoke" else ())
    numbers = {name: clusters.to_json() for name, clusters in counts.items()}
    arrays = {"clients": np.concatenate(clients)}
    return _Picture("Clusters of global models", _ABOUT_GLOBAL, summary, numbers, shown, arrays)


def _make_panels(scores: Scores, row: str, clients: Sequence[int], samples: int) -> list[Panel]:
    """Make a panel for the local model of every client, and for the global one if there is one."""
    config, folder = find_run(scores, row)
    with TemporaryDirectory() as scratch, exact.exact_arithmetic():
        experiment = prepare(config, Path(scratch))
        models = dict(local_models(experiment, folder, clients))
        if (folder / MODEL).is_file():
            models[GLOBAL] = load_file(folder / MODEL)
        return [
            _make_panel(experiment, row, client, weights, samples)
            for client, weights in models.items()
        ]


def find_run(scores: Scores, row: str) -> tuple[Config, Path]:
    """Find the configuration and folder of a row's run on the first seed."""
    cell = next((c for c in scores.study.cells if c.row.name == row), None)
    point = scores.choose(cell) if cell else None
    runs = scores.of(cell, point) if cell and point else {}
    if cell is None or point is None or 0 not in runs or runs[0].failure:
        raise RunFailed(f"there is no finished run of {row} to take features from")
    return scores.study.config(cell, point, 0), Path(runs[0].folder)


def local_models(
    experiment: Experiment, folder: Path, clients: Sequence[int]
) -> Mapping[int, Tensors]:
    """Load the clients' own models, or train the final global model on their data."""
    partition = experiment.partition
    for client in clients:
        if client not in partition.clients:
            raise ConfigError(f"features.clients = {client}: there is no such client")
    if experiment.parts.method.has("personal"):
        return {c: load_file(folder / "personal" / partition.file_name(c)) for c in clients}
    return {client: _trained(experiment, folder, client) for client in clients}


def _trained(experiment: Experiment, folder: Path, client: int) -> Tensors:
    """Train the final global model on a client's data, in a round like the last."""
    kept = CheckpointStore(folder).load_newest()
    if kept is None:
        raise RunFailed(f"{folder} holds no checkpoint")
    stages, clients = experiment.parts.stages(METHOD), len(experiment.partition.clients)
    stage, round = plan_rounds(stages, clients, experiment.config.run.seed)[-1]
    (reply,), _ = make_player(experiment).rehearse(stage, round, kept[0], [client])
    return reply.up["model"]


def _make_panel(
    experiment: Experiment, row: str, client: int, weights: Tensors, samples: int
) -> Panel:
    """Project a seeded sample of a client's training images, or of the test set."""
    tests = np.arange(len(experiment.dataset.y_test))
    rows = tests if client == GLOBAL else experiment.partition.train[client]
    drawn = seeds.generator(0, "features", client=client + 1).permutation(rows)[:samples]
    return Panel(row, client, *project(experiment, weights, drawn, test=client == GLOBAL))


def project(
    experiment: Experiment, weights: Tensors, rows: np.ndarray, test: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Compute z of some training or test images under a model; also return their classes."""
    dataset, nobody = experiment.dataset, np.empty(0, dtype=np.int64)
    if not test:
        dataset = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    shard = DataShard(dataset, nobody, rows)
    net = experiment.parts.nets(METHOD).frozen("model", weights, {})
    with experiment.parts.kernels():
        parts = [(net(batch).z, batch.y) for batch in shard.sweep(test=True)]
    z, y = (torch.cat(tensors).numpy() for tensors in zip(*parts, strict=True))
    experiment.parts.nets(METHOD).release()
    return z, y


def embed(panels: Sequence[Panel]) -> list[np.ndarray]:
    """Embed the panels of a row in one plane by t-SNE."""
    ends = np.cumsum([len(panel.y) for panel in panels])
    return np.split(embed_in_plane(np.concatenate([panel.z for panel in panels])), ends[:-1])


def measure_agreement(panels: Sequence[Panel]) -> dict[str, float]:
    """Average the cosine of class means of two local models: same class, other class."""
    local = [panel for panel in panels if panel.client != GLOBAL]
    same: list[float] = []
    other: list[float] = []
    for first, second in pairwise(local):
        ours, theirs = _directions(first), _directions(second)
        for a, b in product(ours, theirs):
            (same if a == b else other).append(float(ours[a] @ theirs[b]))
    cosines = {"same class": same, "other class": other}
    return {name: fmean(values) for name, values in cosines.items() if values}


def _directions(panel: Panel) -> dict[int, np.ndarray]:
    means = {int(k): panel.z[panel.y == k].mean(axis=0) for k in np.unique(panel.y)}
    return {k: mean / max(float(np.linalg.norm(mean)), 1e-12) for k, mean in means.items()}


def describe_agreement(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """Say how much clients agree, and whether they agree most in the last row."""
    rows = [
        f"{row}: {', '.join(f'{name} {value:.3f}' for name, value in cosines.items())}"
        for row, cosines in numbers.items()
    ]
    text = f"mean cosine between two clients' class means: {'; '.join(rows)}."
    gaps = {
        row: cosines["same class"] - cosines["other class"]
        for row, cosines in numbers.items()
        if len(cosines) == 2  # two clients may have no class in common
    }
    if len(gaps) < len(numbers) or len(gaps) < 2:
        return text
    last, *others = reversed(gaps)
    verdict = "holds" if all(gaps[last] > gaps[row] for row in others) else "does not hold"
    return (
        f"{text} {last} keeps one class of two clients together, and apart from the others, "
        f"better than {' and '.join(others)}: {verdict} (one seed)"
    )
