"""What a run leaves behind: weights, `model.json`, an embedding if asked for, and the report."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from coterie.core import exact
from coterie.core.bundle import Tensors
from coterie.core.errors import CheckpointError, DataError
from coterie.core.files import RESUME, read, replace_durably
from coterie.core.task import METHOD
from coterie.data.batches import DataShard
from coterie.engine import embedding, rundir
from coterie.engine.best import Best
from coterie.engine.checkpoints import CheckpointStore
from coterie.engine.loop import Loop, Standing
from coterie.experiment.model_file import (
    MODEL_FILE,
    InputDescription,
    ModelFile,
    SavedWeights,
    WeightsFile,
    read_model_file,
)
from coterie.experiment.prepare import Experiment
from coterie.kit.method import Method
from coterie.nets.norm import batch_norm_buffers
from coterie.report.page import is_whole, write_report

MODEL, BEST, PERSONAL, REPORT = "model.safetensors", "best.safetensors", "personal", "report.html"
_AWAY = ("lost", "late")  # how the tasks of a site fail that is not there
_OF_MACHINE = (
    "kernel",
    "precision",
    "weights",
)  # keys of [net] that say nothing about the trained network


def describe_model(experiment: Experiment, weights: Tensors | None = None) -> ModelFile:
    """Describe the network of a run, its input, classes and clients; the files come at the end.

    It is as read from its file: lists where a table has tuples.
    """
    config, dataset, parts = experiment.config, experiment.dataset, experiment.parts
    nets = parts.nets(METHOD)
    sent = nets.weights() if weights is None else weights
    net = {k: v for k, v in config.tables["net"].items() if not k.startswith(_OF_MACHINE)}
    described = ModelFile(
        coterie=exact.environment(experiment.spec.device)["coterie"],
        method=config.tables["method"],
        objective=config.tables["objective"],
        net=net,
        input=InputDescription(
            kind=dataset.kind,
            shape=tuple(dataset.shape),
            dtype=dataset.x_train.dtype.name,
            mean=tuple(dataset.mean),
            std=tuple(dataset.std),
            resize=config.data.resize,
            columns=dataset.columns,
            label=config.data.label if dataset.columns else "",
        ),
        classes=tuple(dataset.class_names),
        clients=tuple(experiment.partition.names),
        unseen=experiment.unseen,
        kept=tuple(name for name in nets["model"].state_dict() if name not in sent),
        own_nets=type(parts.method).nets is not Method.nets,
        leaves=config.method.leaves,
    )
    return ModelFile.from_json(described.to_json())


def find_damage(folder: Path) -> str | None:
    """Describe the first output of a finished run that is missing, or not as it was written.

    Only files of the run directory are looked at: weights by the hashes in `model.json`, the page
    by its own, and the rounds by that of the newest checkpoint, if there is one.
    """
    try:
        described = read_model_file(folder)
    except DataError as error:
        return str(error)
    saved = described.weights
    if not saved and any((folder / name).exists() for name in (MODEL, PERSONAL)):
        return f"{folder / MODEL_FILE} names no weights"
    for file in filter(None, (saved.last, saved.best, *saved.personal.values())):
        if not rundir.has_hash(file.sha256, folder / file.file):
            return f"{folder / file.file} is missing, or not the file that {MODEL_FILE} names"
    if damage := CheckpointStore(folder).find_damaged_metrics():
        return damage
    return None if is_whole(folder) else f"{folder / REPORT} is missing, damaged or of another run"


def find_lost_outputs(experiment: Experiment, folder: Path, standing: Standing) -> str | None:
    """Describe the first output of a finished run that is missing, damaged or of another run."""
    if damage := find_damage(folder):
        return damage
    weights, best = experiment.parts.method.model(standing.server), standing.position.best
    saved = read_model_file(folder).weights
    last = None
    if weights is not None:
        sha256 = hashlib.sha256(rundir.encode_weights(weights)).hexdigest()
        last = WeightsFile(MODEL, sha256, standing.position.round)
        if saved.last is None or saved.last.sha256 != sha256:
            return f"{folder / MODEL} is not of this run"
        asked = experiment.config.record.embedding not in (0, "auto")
        if asked and not (folder / embedding.EMBEDDING).exists():
            return f"{folder / embedding.EMBEDDING} is missing"
    if best is not None and (saved.best is None or saved.best.sha256 != best.sha256):
        return f"{folder / BEST} is not of this run"
    own = leaves_personal(experiment) and not experiment.remote
    if own and set(saved.personal) != set(experiment.partition.names):
        return f"{folder / PERSONAL} has not the models of all clients"
    try:
        personal = _list_personal(experiment, folder) if own else {}
    except CheckpointError as error:
        return str(error).removesuffix(RESUME)
    files = SavedWeights(last, _describe_best(best) if best else None, personal)
    expected = replace(describe_model(experiment, weights), weights=files)
    if read(folder / MODEL_FILE) != expected.to_json().encode():
        return f"{folder / MODEL_FILE} is not as this run writes it"
    return None


def leaves_personal(experiment: Experiment) -> bool:
    """Whether clients have models of their own: by the method, or by BatchNorm statistics."""
    nets = experiment.parts.nets(METHOD)
    kept = batch_norm_buffers(nets["model"]) - nets.weights().keys()
    return experiment.parts.method.has("personal") or (nets.local_buffers and bool(kept))


def write_outputs(experiment: Experiment, folder: Path, loop: Loop, standing: Standing) -> None:
    """Write the outputs of a finished run; the report comes last and marks it as finished."""
    weights = experiment.parts.method.model(standing.server)
    last = best = None
    if weights is not None:
        sha256 = rundir.write_weights(folder / MODEL, weights)
        last = WeightsFile(MODEL, sha256, standing.position.round)
        best = _write_best(folder, loop, standing)
        if count := _count_embedded(experiment):
            _embed(experiment, folder, weights, count)
    personal: dict[str, WeightsFile] = {}
    if leaves_personal(experiment):
        # a site that has left stays without its own model; the run is finished all the same
        loop.write_personal(standing, spare=_AWAY if experiment.remote else ())
        personal = {} if experiment.remote else _list_personal(experiment, folder)
    described = describe_model(experiment, weights)
    replace(described, weights=SavedWeights(last, best, personal)).write(folder)
    rundir.clean(folder)
    write_report(folder)


def _write_best(folder: Path, loop: Loop, standing: Standing) -> WeightsFile | None:
    """Write the weights of the best round, from its commit or from memory."""
    best: Best | None = standing.position.best
    if best is None:
        return None
    if standing.best_weights is not None:
        best = replace(best, sha256=rundir.write_weights(folder / BEST, standing.best_weights))
    else:
        data = loop.store.best.read(best)
        if data is None:  # the loop has checked it
            raise CheckpointError(
                f"the weights of the best round in {loop.store.best.folder} cannot be read any "
                f"more{RESUME}"
            )
        replace_durably(folder / BEST, data)
    return _describe_best(best)


def _describe_best(best: Best) -> WeightsFile:
    return WeightsFile(BEST, best.sha256, best.round, best.metric, best.value)


def _list_personal(experiment: Experiment, folder: Path) -> dict[str, WeightsFile]:
    """List the clients' own models, with the hashes of their files."""
    shares, files = experiment.partition, dict[str, WeightsFile]()
    for client, name in zip(shares.clients, shares.names, strict=True):
        file = f"{PERSONAL}/{shares.file_name(client)}"
        data = read(folder / file)
        files[name] = WeightsFile(file, hashlib.sha256(data).hexdigest())
    return files


def _count_embedded(experiment: Experiment) -> int:
    """Count the samples of `embedding.npz`; 0 where they are on other machines or private."""
    available = sum(map(len, experiment.partition.train.values()))
    wanted, hidden = experiment.config.record.embedding, bool(experiment.config.privacy.clip)
    return 0 if experiment.remote or hidden else embedding.choose_count(wanted, available)


def _embed(experiment: Experiment, folder: Path, weights: Tensors, count: int) -> None:
    """Write representations of a sample of the training data by the global model."""
    shares, dataset, spec = experiment.partition, experiment.dataset, experiment.spec
    rows = embedding.draw(shares.train, count, spec.seed)
    make_shard = partial(DataShard, dataset, test=np.empty(0, np.int64), device=spec.device)
    samples = {
        client: (make_shard(own, shift=shares.shifts.get(client)), own)
        for client, own in rows.items()
    }
    nets = experiment.parts.nets(METHOD)
    net = nets.frozen_on_server("model", weights)
    with experiment.parts.arithmetic():
        path = folder / embedding.EMBEDDING
        embedding.write(path, net, samples, dataset.y_train, spec.seed)
    nets.release()
