"""Measure a finished run again, from the weights that it left and the data that it was trained on.

Its checkpoints and client states are not needed. The evaluators of the run give the values of its
last round again, bit for bit on the same type of machine; others can be chosen instead.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from safetensors.torch import load_file

from coterie.core import exact
from coterie.core.bundle import Bundle, Payload, ServerState, Tensors
from coterie.core.errors import ConfigError, DataError
from coterie.core.registry import Component
from coterie.core.settings import ServerSettings
from coterie.core.task import METHOD, Attempt, Round
from coterie.engine.play import Player
from coterie.engine.record import MetricsFile, Recorder, Recorders
from coterie.engine.spec import Parts
from coterie.experiment.config import Config, resolve
from coterie.experiment.model_file import SavedWeights, read_model_file
from coterie.experiment.own import GIVEN
from coterie.experiment.prepare import Experiment, make_executor, make_plan, prepare
from coterie.experiment.restore import read_weights
from coterie.experiment.tables import Tables, by_table, read
from coterie.kit.builder import Builder
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.method import Method
from coterie.kit.networks import Nets
from coterie.kit.stages import Replies, Stage, State, plan_rounds
from coterie.nets.heads import Network
from coterie.nets.precision import find_bf16_problem

_CHANGEABLE = ("evaluate", "executor", "data.root", "data.test", "run.device")
_OF_TRAINING = ("targets", "stop_at_target", "patience")  # keys of `[evaluate]`


@final
@dataclass(frozen=True)
class Saved(Method):
    """A method whose models are the files of a finished run; it trains nothing."""

    stage: str  # of the run's last round
    trained: dict[str, Any]  # the method of the run, as the fields of a `Component`
    files: dict[str, str] = field(default_factory=dict)  # of personal models, by number of client

    objectives = None

    def nets(self, build: Builder) -> dict[str, Network]:
        """Build the networks of the run's method."""
        method: Method = Component(**self.trained).build()
        return method.nets(build)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """One stage with the name of the run's last one, as the evaluated round has it."""
        return (Stage(self.stage, rounds, "none"),)

    def init(self, nets: Nets) -> ServerState:
        """Start without a model; the server's state is made from a file."""
        return Bundle()

    def broadcast(self, server: ServerState, round: Round) -> Payload:
        """Send nothing: clients read their models from files."""
        return Bundle()

    def server_update(self, ctx: ServerContext, server: ServerState, replies: Replies) -> Bundle:
        """Leave the model as it is."""
        return server

    def model(self, server: ServerState) -> Tensors | None:
        """Return the saved global model, if the run has one."""
        return server.get("model") or None

    def personal(self, ctx: ClientContext, down: Payload, state: State) -> Tensors | None:
        """Read the client's saved model, if it has one."""
        file = self.files.get(str(ctx.id))
        return None if file is None else load_file(file)


def evaluate(
    folder: str | PathLike[str],
    changes: Mapping[str, Any] | None = None,
    recorders: Sequence[Recorder] = (),
) -> Mapping[str, float]:
    """Measure a finished run with its own evaluators, or others, and return the metrics.

    `changes` are tables or dotted keys of `[evaluate]` and `[executor]`, `data.root`,
    `data.test` and `run.device`. Nothing is written into the run directory.
    """
    folder = Path(folder)
    model = read_model_file(folder)
    if not model.weights:
        raise ConfigError(
            f"{folder} is not finished, so there is no model to evaluate; resume it with: "
            f"coterie run --out {folder} --resume"
        )
    config = _configure(folder, by_table(changes or {}))
    with exact.exact_arithmetic(), TemporaryDirectory() as scratch:
        trained = prepare(config, Path(scratch))
        _check_data(trained, folder)
        if not trained.config.evaluators:
            raise ConfigError(f"{'; '.join(trained.notes) or 'evaluate.with names no evaluator'}")
        round = _last_round(trained, folder)
        experiment = _use_saved(trained, folder, round.stage)
        server = _read_models(folder, model.weights)
        with closing(make_executor(experiment)) as executor:
            player = Player(experiment.parts, executor, Recorders(recorders), ServerSettings())
            evaluation = make_plan(experiment, Path(scratch)).evaluation
            return evaluation.measure(player, round, server, Attempt()).metrics


def _configure(folder: Path, changes: Tables) -> Config:
    """Resolve the configuration of a run with changes; refuse those that need another run."""
    for table, values in changes.items():
        for key in values:
            if not {table, f"{table}.{key}"} & {*_CHANGEABLE}:
                allowed = "evaluate.*, executor.*, data.root, data.test and run.device"
                raise ConfigError(
                    f"{table}.{key} is of the run as it was trained; only {allowed} can be changed"
                )
    tables = read(folder / "config.toml")
    if tables.get("data", {}).get("name") == GIVEN:
        raise DataError(
            f"{folder} was trained on data that a Python program passed in and that it does not "
            "keep: call score(x, y) of coterie.load(...) there"
        )
    settings = {k: v for k, v in tables.get("evaluate", {}).items() if k not in _OF_TRAINING}
    if "with" in changes.get("evaluate", {}):
        settings.pop("last", None)  # those chosen now are all that is measured
    tables["evaluate"] = settings
    tables.pop("record", None)
    augment = tables.get("data", {}).get("augment")
    if isinstance(augment, str) and augment.startswith("object:"):
        tables["data"]["augment"] = "auto"  # evaluation does not augment
    if tables.get("net", {}).get("kernel") == "native":
        tables["net"]["kernel"] = "auto"  # torch if there are none on this machine
    if tables.get("net", {}).get("precision") == "bf16" and find_bf16_problem("cpu"):
        tables["net"]["precision"] = "fp32"
    return resolve(tables, changes, folder.name)


def _check_data(experiment: Experiment, folder: Path) -> None:
    """Check that data and partition are those that the run was started with."""
    path = folder / "partition.json"
    try:
        digest = json.loads(path.read_text())["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if digest != experiment.summary()["digest"]:
        raise DataError(
            f"these are not the data that {folder} was trained on; say where those are with "
            "data.root=..."
        )


def _last_round(experiment: Experiment, folder: Path) -> Round:
    """Find the last round that was played; a run may have stopped before the planned end."""
    parts, clients = experiment.parts, len(experiment.trained.clients)
    planned = plan_rounds(parts.stages(METHOD), clients, experiment.spec.seed)
    history = MetricsFile(folder / "metrics.jsonl").read()
    return planned[history[-1].round if history else -1][1]


def _read_models(folder: Path, saved: SavedWeights) -> ServerState:
    """Read the global model, if there is one, and check the files of the others."""
    for entry in saved.personal.values():
        read_weights(folder / entry.file, entry.sha256)
    if saved.last is None:
        return Bundle()
    return Bundle({"model": read_weights(folder / saved.last.file, saved.last.sha256)})


def _use_saved(experiment: Experiment, folder: Path, stage: str) -> Experiment:
    """Replace the method by the models that it has left, all of whose evaluators are due."""
    shares, files = experiment.partition, {}
    for client in shares.clients:
        path = (folder / "personal" / shares.file_name(client)).absolute()
        if path.is_file():
            files[str(client)] = str(path)
    method = Saved(stage, asdict(Component.of(experiment.config.method)), files)
    spec = replace(experiment.spec, method=Component.of(method), last=())
    return replace(experiment, spec=spec, parts=Parts(spec))
