"""Draws the representations of local or global models, and puts them into numbers.

FedProc's Figure 2 draws those of local models: of clients that train alone, and of clients of a
federation, beside the global model's. The local model of a client in a federation is what the
client makes of the final global model in one round of its own training, with the settings of the
last round. MFCL's Figure 6 draws those of global models (`clusters.py`), and MOON's Figure 3 both,
on the same test images.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
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
from coterie.experiment.outputs import MODEL
from coterie.experiment.prepare import Experiment, make_player, prepare
from coterie.kit.stages import plan_rounds
from coterie.report.document import format_body, format_figure, format_note, make_document
from coterie.report.point_panels import draw_points
from coterie.report.scatter import Scatter, chart_points, embed_in_plane
from coterie.reproduce.clusters import (
    NEIGHBOURS,
    count_clusters,
    describe_clusters,
    describe_neighbours,
)
from coterie.reproduce.recipe import Features, get_at_scale
from coterie.reproduce.scores import Scores

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
_ABOUT_BOTH = (
    "t-SNE of z by cosine for the same test images, every panel by itself. Colour and symbol are "
    "the class. Distances between far groups mean little in such a picture."
)


@dataclass(frozen=True)
class Panel:
    """The representations of some images under one model."""

    name: str
    clients: np.ndarray  # whose each image is; GLOBAL: of the test set
    z: np.ndarray
    y: np.ndarray


def write_features(scores: Scores, wanted: Features, folder: Path) -> str:
    """Write page, picture, arrays and numbers beside the outcome, of the rows that were run.

    Returns a sentence about the numbers.
    """
    run = [cell.row.name for cell in scores.study.cells]
    rows = [row for row in wanted.rows if row in run]
    if not rows:
        return f"there is no picture of features: none of {', '.join(wanted.rows)} was asked for"
    groups = list(_list_groups(scores, wanted, rows))
    panels = [panel for group in groups for panel in group]
    planes = [embed(group) for group in groups]
    shown = [scatter for plane in planes for scatter in plane]
    arrays = {"clients": np.concatenate([panel.clients for panel in panels])}
    numbers: Mapping[str, Any]
    claimed = scores.study.scale != "smoke"  # which shows nothing about the paper
    if wanted.of != "local":
        counts = {p.name: count_clusters(p.points, p.classes) for p in shown}
        numbers = {name: clusters.to_json() for name, clusters in counts.items()}
    if wanted.of == "both":
        title, about = "Hidden vectors of global and local models", _ABOUT_BOTH
        summary = describe_neighbours(counts, list_pairs(rows, list(counts)) if claimed else ())
    elif wanted.of == "global":
        title, about = "Clusters of global models", _ABOUT_GLOBAL
        summary = describe_clusters(counts, rows if claimed else ())
    else:
        title, about = "Features of local models", _ABOUT_LOCAL
        numbers = {row: measure_agreement(group) for row, group in zip(rows, groups, strict=True)}
        summary = describe_agreement(numbers)
        arrays["features"] = np.concatenate([panel.z for panel in panels])
    arrays |= {
        "classes": np.concatenate([panel.y for panel in panels]),
        "panels": np.repeat(np.arange(len(panels)), [len(panel.y) for panel in panels]),
        "names": np.array([panel.name for panel in panels]),
        "places": np.concatenate([scatter.points for scatter in shown]),
    }
    head = f'<h1>{escape(title)}</h1><p class="soft">{escape(summary)}</p>'
    figure = format_figure(chart_points(shown, "Panels", tied=wanted.of == "both"))
    page = make_document(
        title.lower(), format_body(head, [("Picture", format_note(about) + figure)])
    )
    replace_durably(folder / "features.html", page.encode())
    replace_durably(folder / "features.svg", draw_points(planes, title).encode())
    replace_durably(folder / "features.json", (json.dumps(numbers, indent=1) + "\n").encode())
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    replace_durably(folder / "features.npz", file.getvalue())
    return summary


def _list_groups(scores: Scores, wanted: Features, rows: Sequence[str]) -> Iterator[list[Panel]]:
    """Project images under the models of every row; each group has a plane of its own."""
    samples = get_at_scale(wanted, "samples", scores.study.scale)
    for row in rows:
        config, folder = find_run(scores, row)
        with TemporaryDirectory() as scratch, exact.exact_arithmetic():
            experiment = prepare(config, Path(scratch))
            if wanted.of == "local":
                yield _project_local(experiment, folder, row, wanted.clients, samples)
            elif wanted.of == "both":
                for panel in _project_both(experiment, folder, row, wanted.clients, samples):
                    yield [panel]
            else:
                if wanted.raw and row == rows[0]:
                    yield [_take_images(experiment, wanted.clients[0], samples)]
                yield [_project_global(experiment, folder, row, samples)]


def list_pairs(rows: Sequence[str], panels: Sequence[str]) -> list[tuple[str, str]]:
    """List the panels to compare: the first with all others, a global model with its local ones."""
    first, *others = panels
    own = ((row, panel) for row in rows if row in others for panel in others if panel != row)
    local = [(row, panel) for row, panel in own if panel.startswith(f"{row}, client ")]
    return [*((first, other) for other in others), *local]


def _project_local(
    experiment: Experiment, folder: Path, row: str, clients: Sequence[int], samples: int
) -> list[Panel]:
    """Project clients' images under their local models, and test images under the global one."""
    models = load_models(experiment, folder, clients)
    if (folder / MODEL).is_file():
        models[GLOBAL] = load_file(folder / MODEL)
    panels = []
    for client, weights in models.items():
        test = client == GLOBAL
        tests = np.arange(len(experiment.dataset.y_test))
        rows = tests if test else experiment.partition.train[client]
        drawn = seeds.generator(0, "features", client=client + 1).permutation(rows)[:samples]
        name = f"{row}, {'global' if test else f'client {client + 1}'}"
        owners = np.full(len(drawn), client)
        panels.append(Panel(name, owners, *project(experiment, weights, drawn, test)))
    return panels


def _project_both(
    experiment: Experiment, folder: Path, row: str, clients: Sequence[int], samples: int
) -> Iterator[Panel]:
    """Project the same test images under a row's global model and under clients' local ones."""
    models = {row: load_file(folder / MODEL)} if (folder / MODEL).is_file() else {}
    if not experiment.parts.method.pooled:  # a single client with all data has no local model
        local = load_models(experiment, folder, clients)
        models |= {f"{row}, client {client + 1}": local[client] for client in clients}
    tests = np.arange(len(experiment.dataset.y_test))
    drawn = seeds.generator(0, "hidden vectors").permutation(tests)[:samples]
    for name, weights in models.items():
        projected = project(experiment, weights, drawn, test=True)
        yield Panel(name, np.full(len(drawn), GLOBAL), *projected)


def _project_global(experiment: Experiment, folder: Path, row: str, samples: int) -> Panel:
    """Project training images of all clients under the global model."""
    if not (folder / MODEL).is_file():
        raise RunFailed(f"{row} has no global model to take features from")
    train = experiment.partition.train
    owners = np.repeat(list(train), [len(rows) for rows in train.values()])
    rows = np.concatenate(list(train.values()))
    drawn = seeds.generator(0, "clusters").permutation(len(rows))[:samples]
    projected = project(experiment, load_file(folder / MODEL), rows[drawn], test=False)
    return Panel(row, owners[drawn], *projected)


def _take_images(experiment: Experiment, client: int, samples: int) -> Panel:
    """Take images of a client as they are."""
    rows = experiment.partition.train[client]
    drawn = seeds.generator(0, "raw").permutation(rows)[:samples]
    images = np.asarray(experiment.dataset.x_train[drawn], np.float32).reshape(len(drawn), -1)
    labels = np.asarray(experiment.dataset.y_train[drawn])
    return Panel(f"images of client {client + 1}", np.full(len(drawn), client), images, labels)


def find_run(scores: Scores, row: str) -> tuple[Config, Path]:
    """Find the configuration and folder of a row's run on the first seed."""
    cell = next(c for c in scores.study.cells if c.row.name == row)
    point = scores.choose(cell)
    run = scores.first(cell, point) if point else None
    if point is None or run is None or run.value is None:
        raise RunFailed(f"there is no finished run of {row} to take features from")
    return scores.study.config(cell, point, run.seed), Path(run.folder)


def load_models(experiment: Experiment, folder: Path, clients: Sequence[int]) -> dict[int, Tensors]:
    """Load the clients' own models, or train the final global model on their data."""
    partition = experiment.partition
    for client in clients:
        if client not in partition.clients:
            raise ConfigError(f"features.clients = {client}: there is no such client")
    if experiment.parts.method.has("personal"):
        return {c: load_file(folder / "personal" / partition.file_name(c)) for c in clients}
    kept = CheckpointStore(folder).load_newest()
    if kept is None:
        raise RunFailed(f"{folder} holds no checkpoint")
    stages, player = experiment.parts.stages(METHOD), make_player(experiment)
    # A round like the last, with the final model.
    stage, round = plan_rounds(stages, len(partition.clients), experiment.config.run.seed)[-1]
    replies = (player.rehearse(stage, round, kept[0], [client])[0][0] for client in clients)
    return {reply.client: reply.up["model"] for reply in replies}


def project(
    experiment: Experiment, weights: Tensors, rows: np.ndarray, test: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Compute z of some training or test images under a model; also return their classes."""
    dataset, nets = experiment.dataset, experiment.parts.nets(METHOD)
    if not test:
        dataset = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    shard = DataShard(dataset, np.empty(0, dtype=np.int64), rows)
    net = nets.frozen("model", weights, {})
    with experiment.parts.arithmetic():
        parts = [(net(batch).z, batch.y) for batch in shard.sweep(test=True)]
    z, y = (torch.cat(tensors).numpy() for tensors in zip(*parts, strict=True))
    nets.release()
    return z, y


def embed(panels: Sequence[Panel]) -> list[Scatter]:
    """Embed panels in one plane by t-SNE."""
    together = embed_in_plane(np.concatenate([panel.z for panel in panels]))
    parts = np.split(together, np.cumsum([len(panel.y) for panel in panels])[:-1])
    return [Scatter(p.name, own, p.y, together) for p, own in zip(panels, parts, strict=True)]


def measure_agreement(panels: Sequence[Panel]) -> dict[str, float]:
    """Average the cosine of class means of two local models: same class, other class."""
    local = [_find_directions(panel) for panel in panels if GLOBAL not in panel.clients]
    cosines: dict[str, list[float]] = {"same class": [], "other class": []}
    for ours, theirs in pairwise(local):
        for a, b in product(ours, theirs):
            cosines["same class" if a == b else "other class"].append(float(ours[a] @ theirs[b]))
    return {name: fmean(values) for name, values in cosines.items() if values}


def _find_directions(panel: Panel) -> dict[int, np.ndarray]:
    """Find the direction of the mean of every class."""
    means = {int(k): panel.z[panel.y == k].mean(axis=0) for k in np.unique(panel.y)}
    return {k: mean / max(float(np.linalg.norm(mean)), 1e-12) for k, mean in means.items()}


def describe_agreement(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """Say how much clients agree, and whether more in the last row than in each of the others."""
    rows = [
        f"{row}: {', '.join(f'{name} {value:.3f}' for name, value in cosines.items())}"
        for row, cosines in numbers.items()
    ]
    text = f"mean cosine between two clients' class means: {'; '.join(rows)}."
    if len(numbers) < 2 or any(len(cosines) < 2 for cosines in numbers.values()):
        return text  # two clients may have no class in common
    gaps = {row: c["same class"] - c["other class"] for row, c in numbers.items()}
    last, *others = reversed(gaps)
    text += f" {last} keeps one class of two clients together, and apart from the others, better"
    verdicts = {row: "holds" if gaps[last] > gaps[row] else "does not hold" for row in others}
    than = (f"than {row}: {verdict} (one seed)" for row, verdict in reversed(verdicts.items()))
    return f"{text} {'; '.join(than)}"
