"""Prepares a run: loads and divides the data, builds the parts, checks all before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core import exact, registry, seeds
from coterie.core.errors import ConfigError, DataError
from coterie.core.registry import Component
from coterie.core.task import METHOD, Executor
from coterie.data import datasets, partition
from coterie.data.augment import make_augment
from coterie.data.batches import DataShard
from coterie.data.checks import NOBODY
from coterie.data.datasets import Dataset
from coterie.data.heterogeneity import measure
from coterie.data.partition import Partition
from coterie.data.sources.arrays import make_raw
from coterie.data.subset import select, set_aside
from coterie.engine.cohort import count_asked, count_invited, list_clients
from coterie.engine.evaluation import Evaluation
from coterie.engine.loop import Plan
from coterie.engine.play import Player
from coterie.engine.record import Recorders
from coterie.engine.site import Site
from coterie.engine.spec import Parts, Spec
from coterie.engine.tensorboard import check_installed
from coterie.executors.processes import Processes
from coterie.executors.serial import Serial
from coterie.experiment.config import GIVEN, Config
from coterie.native.library import loaded
from coterie.nets.heads import Network

Given = tuple[Dataset, Partition]
Samples = tuple[np.ndarray, np.ndarray]  # x and y
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

    def summary(self) -> dict[str, Any]:
        """Summarise data and partition, for `partition.json`."""
        shares, dataset = self.partition, self.dataset
        table = shares.class_table(dataset.y_train, dataset.classes)
        return {
            "heterogeneity": measure(table),
            "dataset": dataset.name,
            "fingerprint": dataset.fingerprint,
            "digest": f"{shares.digest()}:{dataset.fingerprint}",
            "classes": dataset.classes,
            "clients": [
                {"name": c.name, "train": c.examples, "test": c.tests, "classes": row.tolist()}
                for c, row in zip(list_clients(shares), table, strict=True)
            ],
        }


def prepare(config: Config, folder: Path, given: Given | None = None) -> Experiment:
    """Load the data, divide it, build the networks, and check that all fits together."""
    if config.record.tensorboard:
        check_installed()
    device = _device("run.device", config.run.device)
    for other in (device, *config.executor.devices):
        on_cpu = _device("executor.devices", other).startswith("cpu")
        if config.net.kernel == "native" and not on_cpu:
            raise ConfigError(
                f"net.kernel = 'native' is for CPUs, and this run computes on {other}"
            )
    dataset, shares, holdout = _load_data(config, given)
    _check_augment(config, dataset)
    config.objective.check(tuple(dataset.shape))
    if config.method.pooled:
        shares = shares.pooled()
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
        device=device,
        last=config.evaluate.last,
        objects={k: part for k, part in config.objects.items() if k not in ("partition", "data")},
    )
    parts = Parts(spec)
    if _build_model(parts).unit_images:
        _check_units(config, dataset)
        dataset = dataset.without_normalisation()
    experiment = Experiment(config, dataset, shares, spec, parts, holdout)
    _check_evaluators(experiment)
    _check_cohort(experiment)
    _check_record(experiment)
    return experiment


def make_plan(experiment: Experiment, folder: Path) -> Plan:
    """Make the settings of the loop."""
    config, dataset, spec = experiment.config, experiment.dataset, experiment.spec
    # in a drawn order: where BatchNorm uses batch statistics, sorted classes would mislead it
    order = seeds.generator(0, "test-order").permutation(len(dataset.y_test))
    if dataset.groups is not None and (dataset.groups.test == NOBODY).any():
        order = order[dataset.groups.test[order] == NOBODY]  # the others are held out by clients
    train = np.sort(np.concatenate(list(experiment.partition.train.values())))
    lanes = experiment.parts.nets(METHOD).in_lanes
    everything = DataShard(dataset, train, order, device=spec.device, in_lanes=lanes)
    holdout = None
    if len(experiment.holdout):
        mirrored = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
        drawn = seeds.generator(0, "holdout-order").permutation(experiment.holdout)
        holdout = DataShard(mirrored, train, drawn, device=spec.device, in_lanes=lanes)
    environment = exact.environment(spec.device)  # that a resumed run needs for the same bits
    if spec.net.kernel == "native":
        environment["kernels"] = loaded().variant
    evaluation = Evaluation(config.evaluate, everything, holdout)
    return Plan(config.cohort, config.checkpoint, evaluation, folder, environment)


def make_executor(experiment: Experiment) -> Executor:
    """Start what will run the tasks."""
    settings, spec, shares = experiment.config.executor, experiment.spec, experiment.partition
    if settings.kind == "serial":
        return Serial(Site(spec, shares))
    workers = min(settings.workers or exact.cores(), len(shares.clients))
    devices = [_device("executor.devices", name) for name in settings.devices]
    return Processes(spec, shares, workers=workers, devices=devices, timeout=settings.timeout)


def make_player(experiment: Experiment) -> Player:
    """Make a silent player in this process, for trials outside of a run."""
    serial = Serial(Site(experiment.spec, experiment.partition))
    return Player(experiment.parts, serial, Recorders(), experiment.config.server)


def given_data(sites: Mapping[str, Samples], test: Samples | None, seed: int) -> Given:
    """Store the arrays that Python code passed in, one pair a site, and make their partition."""
    if not sites:
        raise DataError("no site was given: pass {'name': (x, y), ...}")
    kept: list[Samples] = []
    held_out: list[Samples] = []
    for index, (name, samples) in enumerate(sites.items()):
        x, y = map(np.asarray, samples)
        if not name or Path(name).name != name:  # its personal model becomes a file of that name
            raise DataError(f"the site {name!r} needs a name that can be a file's")
        if len(x) != len(y):
            raise DataError(f"site {name!r} has {len(x)} samples and {len(y)} labels")
        order = seeds.generator(seed, "hold-out", client=index).permutation(len(x))
        out = 0 if test is not None else len(x) // 5
        kept.append((x[order[out:]], y[order[out:]]))
        held_out.append((x[order[:out]], y[order[:out]]))
    tests = _join(held_out) if test is None else test
    dataset = datasets.store(GIVEN, make_raw("the given arrays", *_join(kept), *tests))
    train = _number(kept)
    if test is None:  # what a site held out itself stays with it
        dealt = _number(held_out)
    else:
        dealt = partition.deal_test(train, dataset.y_train, dataset.y_test, dataset.classes)
    return dataset, Partition(train, dealt, tuple(sites))


def _join(samples: list[Samples]) -> Samples:
    """Concatenate the samples of all sites, and their labels."""
    x, y = zip(*samples, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _number(samples: list[Samples]) -> dict[int, np.ndarray]:
    """Number the joined samples, site by site."""
    ends = np.cumsum([len(y) for _, y in samples]).tolist()
    return {i: np.arange(ends[i] - len(y), ends[i]) for i, (_, y) in enumerate(samples)}


def _load_data(config: Config, given: Given | None) -> tuple[Dataset, Partition, np.ndarray]:
    """Load the data set; decide who trains on what, and which training samples are set aside."""
    settings, seed = config.data, config.run.seed
    if given is None and ":" in settings.name:
        given = _read_source(config)
    if given is not None:
        if settings.holdout:
            raise ConfigError(
                f"data.holdout={settings.holdout} is for data that Coterie divides; leave it out "
                "with arrays that are divided already"
            )
        return *given, np.empty(0, np.int64)
    if settings.name == GIVEN:
        raise DataError("this run used arrays that a Python program passed in: resume it there")
    dataset = datasets.load(settings.name, settings.root, resize=settings.resize)
    left, holdout = set_aside(dataset.y_train, seed, settings.holdout)
    labels, classes = dataset.y_train[left], dataset.classes
    chosen = left[select(labels, classes, seed, settings.limit, settings.imbalance)]
    labels, groups = dataset.y_train[chosen], dataset.groups
    if groups is not None:
        groups = replace(groups, train=groups.train[chosen])
    shares = partition.divide(
        config.partition, labels, dataset.y_test, classes, seed, groups, dataset.shape
    )
    shares = replace(shares, train={k: chosen[rows] for k, rows in shares.train.items()})
    return dataset, shares, holdout


def _read_source(config: Config) -> Given:
    """Call the user's own data source, a function that takes `data.root`."""
    name = config.data.name
    source = config.objects.get("data") or registry.import_own(name, "data.name")
    if not callable(source):
        raise ConfigError(f"data.name = {name!r} must be a function that takes data.root")
    sites = source(config.data.root)
    if not isinstance(sites, Mapping):
        raise DataError(
            f"data.name = {name!r} must return what coterie.fit takes, {{'site': (x, y), ...}}, "
            f"not a {type(sites).__name__}"
        )
    return given_data(sites, None, config.run.seed)


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
        name = config.data.augment
        raise ConfigError(f"data.augment = {name!r} {problem}; use data.augment = 'none'")


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
        if evaluator.pools and (config.data.name in _SITES or ":" in config.data.name):
            raise ConfigError(
                f"evaluate.with = {name!r} trains on the data of all clients together, and "
                "those of sites stay where they are: use 'own_probe' or 'federated_probe'"
            )


def _check_cohort(experiment: Experiment) -> None:
    cohort, clients = experiment.config.cohort, len(experiment.partition.clients)
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
    if config.record.embedding and parts.method.model(parts.start()) is None:
        name = config.tables["method"]["name"]
        raise ConfigError(
            f"record.embedding is of the global model, and method.name = {name!r} has none"
        )
