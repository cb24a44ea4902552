"""Runs a configuration from its start, or resumes it, and writes the outputs."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coterie.core import exact
from coterie.core.bundle import Tensors
from coterie.core.errors import CheckpointError, ConfigError, DataError, Interrupted
from coterie.core.files import replace_durably
from coterie.core.task import METHOD
from coterie.data.batches import DataShard
from coterie.engine import embedding, rundir
from coterie.engine.loop import Loop, Plan, Standing
from coterie.engine.play import Player
from coterie.engine.record import Recorder, Recorders, RoundEvent
from coterie.engine.spec import Parts
from coterie.engine.tensorboard import TensorBoard
from coterie.experiment.config import Config, load
from coterie.experiment.given import Divided
from coterie.experiment.prepare import (
    Experiment,
    make_executor,
    make_plan,
    prepare,
)
from coterie.experiment.tables import Source, read
from coterie.nets.heads import Network
from coterie.report.page import write_report

CONFIG, PARTITION = "config.toml", "partition.json"
MODEL, REPORT = "model.safetensors", "report.html"


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    history: Sequence[RoundEvent]
    experiment: Experiment

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last round."""
        return self.history[-1].metrics

    def model(self) -> Network:
        """Load the trained network, in eval mode."""
        if not (self.folder / MODEL).is_file():
            raise ConfigError(f"the method of {self.folder} has no global model, see personal/")
        net = Parts(self.experiment.spec).nets(METHOD)["model"]
        net.load_state_dict(load_file(self.folder / MODEL), strict=False)
        return net.eval()

    def encoder(self) -> torch.nn.Module:
        """Load the trained backbone alone, which maps images to representations."""
        return self.model().backbone


def run(
    config: Source = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    allow_inexact: bool = False,
    recorders: Sequence[Recorder] = (),
    **overrides: Any,
) -> Result:
    """Run a configuration: a path, a shipped name, or tables as a dictionary.

    Overrides are tables (`local={"lr": 0.1}`) or dotted keys (`**{"local.lr": 0.1}`).
    """
    folder = Path(out) if out is not None else None
    saved = folder / CONFIG if resume and folder is not None else None
    return execute(load(config, overrides, saved), folder, resume, allow_inexact, recorders)


def execute(
    config: Config,
    folder: Path | None = None,
    resume: bool = False,
    allow_inexact: bool = False,
    recorders: Sequence[Recorder] = (),
    given: Divided | None = None,
) -> Result:
    """Prepare, lock, start or resume, run to the end, write the outputs."""
    if resume and folder is None:
        raise ConfigError("--resume needs --out, the directory of the run to resume")
    folder = folder or default_folder(config.name)
    with exact.exact_arithmetic():
        experiment = prepare(config, folder, given)
        if folder.is_dir() and not rundir.is_used(folder) and rundir.has_foreign_files(folder):
            raise ConfigError(f"{folder} is not empty and holds no run; choose another --out")
        with rundir.lock_folder(folder):
            if rundir.is_used(folder) and not resume:
                raise ConfigError(
                    f"{folder} holds a run already; add --resume to resume it, or choose another "
                    "--out"
                )
            return _drive(experiment, folder, allow_inexact, recorders)


def default_folder(name: str) -> Path:
    """Choose `runs/<config>-<time>`, with a number behind it if that exists."""
    stem = f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = Path("runs") / stem, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{stem}-{number}"
    return folder


def _drive(
    experiment: Experiment, folder: Path, allow_inexact: bool, listeners: Sequence[Recorder]
) -> Result:
    """Start or resume a run in a locked folder, and write its outputs."""
    rundir.clean(folder)
    _begin(experiment, folder)
    boards = [TensorBoard(folder)] if experiment.config.record.tensorboard else []
    recorders = Recorders([*listeners, *boards])
    if local := [k for k in experiment.config.objects if k not in ("partition", "data")]:
        recorders.note(f"{', '.join(local)} of this process only: executor.kind = serial")
    for note in experiment.notes:
        recorders.note(note)
    if experiment.dataset.groups and experiment.config.tables["partition"]["kind"] != "by-group":
        recorders.note("the data have clients of their own: partition.kind=by-group")
    plan = make_plan(experiment, folder)
    standing = _load_standing(plan, allow_inexact, recorders)
    if standing and standing.position.finished and _is_complete(experiment, folder, standing):
        return Result(folder, standing.history, experiment)
    try:
        with closing(make_executor(experiment)) as executor:
            player = Player(experiment.parts, executor, recorders, experiment.config.server)
            loop = Loop(plan, player, rundir.next_attempt(folder))
            standing = loop.run(standing or loop.start())
            _finish(experiment, folder, loop, standing)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; resume with: coterie run --out {folder} --resume"
        ) from None
    return Result(folder, standing.history, experiment)


def _begin(experiment: Experiment, folder: Path) -> None:
    """Write configuration and partition, or check that they are those of the run."""
    summary = experiment.summary()
    config = folder / CONFIG
    if not config.exists():
        replace_durably(folder / PARTITION, json.dumps(summary, indent=1).encode())
        replace_durably(config, experiment.config.to_toml().encode())
        return
    if difference := experiment.config.difference(read(config)):
        raise ConfigError(f"{folder} was started with another configuration: {difference}")
    try:
        digest = json.loads((folder / PARTITION).read_text())["digest"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / PARTITION} cannot be read: {error}") from error
    if digest != summary["digest"]:
        raise DataError(f"the data of {folder} are not the ones it was started with")


def _load_standing(plan: Plan, allow_inexact: bool, recorders: Recorders) -> Standing | None:
    """Load what an earlier attempt committed, and discard the rest; None if there is nothing."""
    store, metrics = plan.checkpoints(), plan.metrics()
    loaded = store.load_newest()
    if loaded is None:
        metrics.truncate(0)
        return None
    server, position, problems = loaded
    position = replace(position, environment=plan.environment) if allow_inexact else position
    for problem in problems:
        recorders.note(f"a checkpoint is broken, the one before is used: {problem}")
    for name, value in plan.environment.items():
        before = position.environment.get(name, value)  # older checkpoints have fewer
        if before != value:
            raise ConfigError(
                f"the run was made with {name} {before}, this is {name} {value}: the bits would "
                "differ; --allow-inexact resumes all the same"
            )
    store.discard_after(position.round)
    metrics.truncate(position.metrics_bytes)
    return Standing(server, position, tuple(metrics.read()))


def _is_complete(experiment: Experiment, folder: Path, standing: Standing) -> bool:
    """Whether all outputs of a finished run exist."""
    method, outputs = experiment.parts.method, [REPORT]
    if method.model(standing.server) is not None:
        outputs += [MODEL, embedding.EMBEDDING] if experiment.config.record.embedding else [MODEL]
    if method.has("personal"):
        outputs.append("personal")
    return all((folder / name).exists() for name in outputs)


def _finish(experiment: Experiment, folder: Path, loop: Loop, standing: Standing) -> None:
    """Write the outputs; the report comes last and marks a finished run."""
    weights = experiment.parts.method.model(standing.server)
    if weights is not None:
        rundir.write_weights(folder / MODEL, weights)
        if experiment.config.record.embedding:
            _embed(experiment, folder, weights)
    if experiment.parts.method.has("personal"):
        loop.write_personal(standing)
    rundir.clean(folder)
    write_report(folder)


def _embed(experiment: Experiment, folder: Path, weights: Tensors) -> None:
    """Write representations of a sample of the training data by the global model."""
    shares, dataset, spec = experiment.partition, experiment.dataset, experiment.spec
    rows = embedding.draw(shares.train, experiment.config.record.embedding, spec.seed)
    make_shard = partial(DataShard, dataset, test=np.empty(0, np.int64), device=spec.device)
    samples = {
        client: (make_shard(own, shift=shares.shifts.get(client)), own)
        for client, own in rows.items()
    }
    nets = experiment.parts.nets(METHOD)
    net = nets.frozen_on_server("model", weights)
    with experiment.parts.kernels():
        path = folder / embedding.EMBEDDING
        embedding.write(path, net, samples, dataset.y_train, spec.seed)
    nets.release()
