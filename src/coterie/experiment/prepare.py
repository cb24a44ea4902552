"""Prepares a run: loads and divides the data, builds the parts, checks all before it starts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core import exact, paths, seeds
from coterie.core.errors import ConfigError
from coterie.core.formatting import quote
from coterie.core.registry import Component
from coterie.core.task import METHOD, ClientId, Executor
from coterie.data.augment import choose_views, make_augment
from coterie.data.batches import DataShard
from coterie.data.checks import NOBODY
from coterie.data.datasets import Dataset
from coterie.data.heterogeneity import measure
from coterie.data.partition import Partition
from coterie.engine.checkpoints import Origin
from coterie.engine.cohort import count_asked, count_invited, list_clients
from coterie.engine.evaluation import Evaluation
from coterie.engine.loop import Plan
from coterie.engine.play import Player
from coterie.engine.record import Recorders
from coterie.engine.site import Site
from coterie.engine.spec import Parts, Spec, describe_environment
from coterie.executors.cluster.connect import check_installed as check_ray
from coterie.executors.processes import Processes
from coterie.executors.serial import Serial
from coterie.executors.sink_process import check_sinks
from coterie.experiment.config import Config
from coterie.experiment.given import Divided
from coterie.experiment.load_data import load_data
from coterie.experiment.own import GIVEN
from coterie.experiment.privacy import check_budget, make_privacy, settle_privacy
from coterie.experiment.settle import settle
from coterie.nets.heads import Network
from coterie.nets.precision import check_bf16

_ROOM = 300  # bytes of the longest path below a run directory, while it is written
_SITES = (GIVEN, "sites")  # data.name of data that must stay at their sites


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to start; nothing has been written."""

    config: Config
    dataset: Dataset
    partition: Partition
    spec: Spec
    parts: Parts
    holdout: np.ndarray  # training samples that are set aside
    notes: tuple[str, ...] = ()  # what the user should know before the first round
    remote: bool = False  # clients, with their states and own models, are on other machines

    def summary(self) -> dict[str, Any]:
        """Summarise data and partition, for `partition.json`."""
        shares, dataset = self.partition, self.dataset
        table = shares.class_table(dataset.y_train, dataset.classes)
        return {
            "heterogeneity": measure(table, sizes=[*shares.sizes().values()]),
            "dataset": dataset.name,
            "fingerprint": dataset.fingerprint,
            "digest": self.data_digest(),
            "classes": dataset.classes,
            "class_names": list(dataset.class_names),
            "clients": [
                {"name": c.name, "id": c.id, "train": c.examples, "test": c.tests}
                | {"classes": row.tolist()}
                | ({"unseen": True} if c.id in self.spec.unseen else {})
                for c, row in zip(list_clients(shares), table, strict=True)
            ],
        }

    def data_digest(self) -> str:
        """Compute a digest of the data and of how they are divided."""
        return f"{self.partition.digest()}:{self.dataset.fingerprint}"

    @property
    def trained(self) -> Partition:
        """The shares of the clients that train: all but those of `cohort.unseen`."""
        shares, unseen = self.partition, self.spec.unseen
        if not unseen:
            return shares
        return shares.restrict({c: rows for c, rows in shares.train.items() if c not in unseen})

    @property
    def unseen(self) -> tuple[str, ...]:
        """The names of the clients that never train and are only tested."""
        named = zip(self.partition.clients, self.partition.names, strict=True)
        return tuple(name for client, name in named if client in self.spec.unseen)


def prepare(config: Config, folder: Path, given: Divided | None = None) -> Experiment:
    """Load the data, divide it, build the networks, and check that all fits together."""
    check_folder(folder)
    check_machine(config)
    check_budget(config)
    loaded = load_data(config, given)
    dataset = loaded.dataset
    settled = settle(loaded.config, dataset, loaded.shares)
    if settled.unseen and dataset.columns:
        # who is unseen is drawn among the clients; only now can the columns leave them out
        dataset = load_data(config, given, settled.unseen_names).dataset
    config, shares = settled.config, settled.shares
    if config.method.pooled:
        shares = shares.pooled()
    experiment = assemble(config, folder, dataset, shares, settled.unseen)
    notes = (*_note_precision(config), *config.notes, *loaded.notes, *dataset.notes, *settled.notes)
    return check_rounds(replace(experiment, holdout=loaded.holdout, notes=notes))


def check_folder(folder: Path) -> None:
    """Refuse a run directory that cannot be made, or not be written to files, before training."""
    if problem := paths.find_unwritable(folder, _ROOM):
        raise ConfigError(f"the run directory {quote(str(folder))} {problem}; choose another")


def _note_precision(config: Config) -> Iterator[str]:
    """Say that a run has bfloat16 because this machine is faster with it."""
    if config.precision_chosen and config.net.precision == "bf16":
        yield "net.precision is bf16, which is faster here; with fp32 all is float32"


def check_machine(config: Config) -> None:
    """Check that this machine has the devices and packages that a configuration asks for."""
    check_sinks(config.record)
    on_cluster = config.executor.kind == "ray"
    if on_cluster:
        check_ray()
    device = _device("run.device", config.run.device)
    if config.net.precision == "bf16":
        check_bf16(device)
    for other in (device, *config.executor.devices):
        here = other if on_cluster else _device("executor.devices", other)  # nodes have their own
        if config.net.precision == "bf16" and not on_cluster:
            check_bf16(here)
        if config.net.kernel == "native" and not here.startswith("cpu"):
            raise ConfigError(
                f"net.kernel = 'native' is for CPUs, and this run computes on {other}"
            )


def assemble(
    config: Config,
    folder: Path,
    dataset: Dataset,
    shares: Partition,
    unseen: tuple[ClientId, ...] = (),
) -> Experiment:
    """Build the parts for data that are divided, and check that all fits together."""
    _check_augment(config, dataset)
    config.objective.check(tuple(dataset.shape))
    spec = Spec(
        seed=config.run.seed,
        data=str(dataset.path),
        shape=tuple(dataset.shape),
        classes=dataset.classes,
        augment=config.data.augment,
        net=config.net,
        local=config.local,
        method=Component.of(config.method),
        objective=Component.of(config.objective),
        evaluators={name: Component.of(part) for name, part in config.evaluators.items()},
        folder=str(folder.absolute()),
        rounds=config.run.rounds,
        device=_device("run.device", config.run.device),
        last=config.evaluate.last,
        unseen=unseen,
        objects={k: part for k, part in config.objects.items() if k not in ("partition", "data")},
    )
    parts = Parts(spec)
    if _build_model(parts).unit_images:
        _check_units(config, dataset)
        dataset = dataset.without_normalisation()
    experiment = Experiment(config, dataset, shares, spec, parts, np.empty(0, np.int64))
    _check_evaluators(experiment)
    return experiment


def check_rounds(experiment: Experiment) -> Experiment:
    """Check that rounds can be played as configured; add what to say of it to the notes."""
    _check_cohort(experiment)
    _check_record(experiment)
    experiment.parts.check_uploads()
    return replace(experiment, notes=(*experiment.notes, *settle_privacy(experiment)))


def make_plan(experiment: Experiment, folder: Path) -> Plan:
    """Make the settings of the loop."""
    config, dataset, spec = experiment.config, experiment.dataset, experiment.spec
    # in a drawn order: where BatchNorm uses batch statistics, sorted classes would mislead it
    order = seeds.generator(0, "test-order").permutation(len(dataset.y_test))
    if dataset.groups is not None and (dataset.groups.test == NOBODY).any():
        order = order[dataset.groups.test[order] == NOBODY]  # the others are held out by clients
    for client in spec.unseen:  # tested by themselves, so that no choice depends on them
        order = order[~np.isin(order, experiment.partition.test[client])]
    train = np.sort(np.concatenate(list(experiment.trained.train.values())))
    lanes = experiment.parts.nets(METHOD).in_lanes
    everything = DataShard(dataset, train, order, device=spec.device, in_lanes=lanes)
    holdout = None
    if len(experiment.holdout):
        mirrored = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
        drawn = seeds.generator(0, "holdout-order").permutation(experiment.holdout)
        holdout = DataShard(mirrored, train, drawn, device=spec.device, in_lanes=lanes)
    environment = describe_environment(spec)  # that a resumed run needs for the same bits
    evaluation = Evaluation(config.evaluate, everything, holdout, dataset.class_names)
    described = dataset.describe()
    return Plan(
        config.cohort,
        config.checkpoint,
        evaluation,
        folder,
        environment,
        Origin(config.identity(), experiment.data_digest()),
        described,
        remote=experiment.remote,
        privacy=make_privacy(experiment),
    )


def make_executor(
    experiment: Experiment, note: Callable[[str], None] = lambda text: None
) -> Executor:
    """Start what will run the tasks; `note` is told what the user should know of it."""
    settings, spec, shares = experiment.config.executor, experiment.spec, experiment.partition
    if settings.kind == "serial":
        return Serial(Site(spec, shares))
    if settings.kind == "ray":
        from coterie.executors.cluster.executor import Cluster  # Ray is an extra

        return Cluster(
            experiment.parts,
            shares,
            experiment.dataset.fingerprint,
            address=settings.address,
            insecure=settings.insecure,
            workers=min(settings.workers, len(shares.clients)),
            devices=settings.devices,
            timeout=settings.timeout,
            note=note,
        )
    workers = min(settings.workers or exact.cores(), len(shares.clients))
    devices = [_device("executor.devices", name) for name in settings.devices]
    return Processes(spec, shares, workers=workers, devices=devices, timeout=settings.timeout)


def make_player(experiment: Experiment) -> Player:
    """Make a silent player in this process, for trials outside of a run."""
    serial = Serial(Site(experiment.spec, experiment.partition))
    return Player(experiment.parts, serial, Recorders(), experiment.config.server)


def _device(key: str, name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=torch.device(name)).item()  # "meta" makes tensors without values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key} = {name!r} cannot be used here: {reason}") from error
    return name


def _check_augment(config: Config, dataset: Dataset) -> None:
    augment = make_augment(config.objects.get("augment", config.data.augment))
    if problem := augment.find_problem(dataset.x_train):
        name, views = config.data.augment, config.method.views or config.objective.views
        remedy = "use data.augment = 'none'"
        if len(views) > 1:
            chosen = make_augment(choose_views(dataset.kind, tuple(dataset.shape), views))
            unfit = chosen.find_problem(dataset.x_train)
            other = "another data.augment" if unfit else "data.augment=auto"
            remedy = f"use {other}, or one of your own that takes such samples"
        raise ConfigError(f"data.augment = {name!r} {problem}; {remedy}")


def _check_units(config: Config, dataset: Dataset) -> None:
    """Check that a method that compares pixels gets pixels."""
    name, shape = config.tables["method"]["name"], tuple(dataset.shape)
    if len(shape) != 3:
        raise ConfigError(
            f"method.name = {name!r} takes images, the data has samples of shape {shape}"
        )
    if dataset.x_train.dtype != np.uint8:
        low, high = float(dataset.x_train.min()), float(dataset.x_train.max())
        if low < 0.0 or high > 1.0:
            raise ConfigError(
                f"method.name = {name!r} takes images of bytes, or of floats between 0 and 1, the "
                f"data has floats from {low:g} to {high:g}"
            )


def _build_model(parts: Parts) -> Network:
    """Build the networks; if memory is too small for them, the configuration is wrong."""
    try:
        return parts.nets(METHOD)["model"]
    except (RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the network of [net] cannot be built: {reason}") from error


def _check_evaluators(experiment: Experiment) -> None:
    """Check that the network has the heads they need, and that sites keep their data."""
    config, net = experiment.config, experiment.parts.nets(METHOD)["model"]
    for name, evaluator in experiment.parts.evaluators.items():
        for head in evaluator.needs:
            if getattr(net, head) is None:
                objective = config.tables["objective"]["name"]
                raise ConfigError(
                    f"evaluate.with = {name!r} needs a {head}, and objective.name = {objective!r} "
                    "has none: choose other evaluators"
                )
        of_sites = config.data.name in _SITES or ":" in config.data.name
        if evaluator.all_tests and of_sites:
            raise ConfigError(
                f"evaluate.with = {name!r} tests every client's model on the test data of all, and "
                "those of sites stay where they are: use 'personal'"
            )
        if evaluator.pools and of_sites:
            raise ConfigError(
                f"evaluate.with = {name!r} trains on the data of all clients together, and "
                "those of sites stay where they are: use 'own_probe' or 'federated_probe'"
            )


def _check_cohort(experiment: Experiment) -> None:
    cohort, clients = experiment.config.cohort, len(experiment.trained.clients)
    for stage in experiment.parts.stages(METHOD):
        invited = count_invited(clients, stage, cohort.fraction)
        if stage.cohort == "sample" and cohort.min_clients > invited:
            raise ConfigError(
                f"cohort.min_clients = {cohort.min_clients}, but a round invites {invited} of "
                f"{clients} clients: raise cohort.fraction (now {cohort.fraction:g}) or lower it"
            )
        asked = count_asked(clients, stage, cohort.fraction)
        if invited and stage.quorum > asked:
            raise ConfigError(
                f"the stage {stage.name!r} needs answers of {stage.quorum} clients and asks "
                f"{asked} of {clients}: lower the quorum or the drop rate of [method]"
            )


def _check_record(experiment: Experiment) -> None:
    """Check that there is a global model for the embedding."""
    config, parts = experiment.config, experiment.parts
    if config.record.embedding not in (0, "auto") and parts.method.model(parts.start()) is None:
        name = config.tables["method"]["name"]
        raise ConfigError(
            f"record.embedding is of the global model, and method.name = {name!r} has none"
        )
