"""A configuration with its data, its partition and its parts: all that can be wrong shows here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
_SITES = (GIVEN, "sites")  # data.name of data that are not Coterie's to put together


def _nothing() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Experiment:
    """Ready to run; nothing has been written."""

    config: Config
    dataset: Dataset
    partition: Partition
    spec: Spec
    parts: Parts
    held: np.ndarray = field(default_factory=_nothing)  # training samples that are set aside

    def summary(self) -> dict[str, Any]:
        """What `partition.json` says."""
        shares, dataset = self.partition, self.dataset
        table = shares.class_table(dataset.y_train, dataset.classes)
        digest = shares.digest()
        return {
            "heterogeneity": measure(table),
            "dataset": dataset.name,
            "fingerprint": dataset.fingerprint,
            "digest": f"{digest}:{dataset.fingerprint}",
            "classes": dataset.classes,
            "clients": [
                {
                    "name": name,
                    "train": len(shares.train[client]),
                    "test": len(shares.test[client]),
                    "classes": row.tolist(),
                }
                for client, name, row in zip(shares.clients, shares.names, table, strict=True)
            ],
        }


def prepare(config: Config, folder: Path, given: Given | None = None) -> Experiment:
    """Load the data, divide it, build the networks once."""
    if config.record.tensorboard:
        check_installed()
    device = _device("run.device", config.run.device)
    for other in (device, *config.executor.devices):
        on_cpu = _device("executor.devices", other).startswith("cpu")
        if config.net.kernel == "native" and not on_cpu:
            raise ConfigError(
                f"net.kernel = 'native' is for CPUs, and this run computes on {other}"
            )
    dataset, shares, held = _given(config, given) if given else _data(config)
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
        evaluators={name: Component.of(one) for name, one in config.evaluators.items()},
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
    experiment = Experiment(config, dataset, shares, spec, parts, held)
    _check_heads(experiment)
    _check_pools(experiment)
    _check_cohort(experiment)
    _check_record(experiment)
    return experiment


def _environment(spec: Spec) -> dict[str, str]:
    """What a resumed run must find again to give the same bits."""
    kernels = {"kernels": loaded().variant} if spec.net.kernel == "native" else {}
    return exact.environment(spec.device) | kernels


def make_plan(experiment: Experiment, folder: Path) -> Plan:
    """What the loop is asked to do."""
    config, dataset = experiment.config, experiment.dataset
    # in a drawn order: where BatchNorm uses batch statistics, sorted classes would mislead it
    order = seeds.generator(0, "test-order").permutation(len(dataset.y_test))
    if dataset.groups is not None and (dataset.groups.test == NOBODY).any():
        order = order[dataset.groups.test[order] == NOBODY]  # the others are held out by clients
    train = np.sort(np.concatenate(list(experiment.partition.train.values())))
    device, lanes = experiment.spec.device, experiment.parts.nets(METHOD).in_lanes
    everything = DataShard(dataset, train, order, device=device, in_lanes=lanes)
    holdout = None
    if len(experiment.held):
        mirrored = replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
        drawn = seeds.generator(0, "holdout-order").permutation(experiment.held)
        holdout = DataShard(mirrored, train, drawn, device=device, in_lanes=lanes)
    return Plan(
        cohort=config.cohort,
        checkpoint=config.checkpoint,
        evaluation=Evaluation(config.evaluate, everything, holdout),
        folder=folder,
        environment=_environment(experiment.spec),
    )


def make_executor(experiment: Experiment) -> Executor:
    """Where the tasks will run."""
    settings, clients = experiment.config.executor, list_clients(experiment.partition)
    if settings.kind == "serial":
        return Serial(Site(experiment.spec, experiment.partition))
    workers = settings.workers or exact.cores()
    return Processes(
        experiment.spec,
        experiment.partition,
        clients,
        workers=min(workers, len(clients)),
        devices=[_device("executor.devices", name) for name in settings.devices],
        timeout=settings.timeout,
    )


def make_player(experiment: Experiment) -> Player:
    """A silent player in this process, for trials outside of a run."""
    serial = Serial(Site(experiment.spec, experiment.partition))
    return Player(experiment.parts, serial, Recorders(), experiment.config.server)


def given_data(
    sites: Mapping[str, tuple[np.ndarray, np.ndarray]],
    test: tuple[np.ndarray, np.ndarray] | None,
    seed: int,
) -> Given:
    """The data set and partition of arrays that Python code passed in, one pair a site."""
    if not sites:
        raise DataError("no site was given: pass {'name': (x, y), ...}")
    parts: dict[str, list[np.ndarray]] = {key: [] for key in ("x", "y", "x_test", "y_test")}
    train: dict[int, np.ndarray] = {}
    held: dict[int, np.ndarray] = {}
    counts = [0, 0]
    for index, (name, (x, y)) in enumerate(sites.items()):
        x, y = np.asarray(x), np.asarray(y)
        if not name or Path(name).name != name:  # its personal model becomes a file of that name
            raise DataError(f"the site {name!r} needs a name that can be a file's")
        if len(x) != len(y):
            raise DataError(f"site {name!r} has {len(x)} samples and {len(y)} labels")
        order = seeds.generator(seed, "hold-out", client=index).permutation(len(x))
        out = 0 if test is not None else len(x) // 5
        for key, rows in (("", order[out:]), ("_test", order[:out])):
            parts[f"x{key}"].append(x[rows])
            parts[f"y{key}"].append(y[rows])
        train[index] = np.arange(counts[0], counts[0] + len(x) - out)
        held[index] = np.arange(counts[1], counts[1] + out)
        counts[0] += len(x) - out
        counts[1] += out
    x_train, y_train = np.concatenate(parts["x"]), np.concatenate(parts["y"])
    own = np.concatenate(parts["x_test"]), np.concatenate(parts["y_test"])
    dataset = datasets.store(
        GIVEN, make_raw("the given arrays", x_train, y_train, *(own if test is None else test))
    )
    if test is not None:  # what a site held out itself stays with it
        held = partition.deal_test(train, dataset.y_train, dataset.y_test, dataset.classes)
    return dataset, Partition(train, held, tuple(sites))


def _given(config: Config, given: Given) -> tuple[Dataset, Partition, np.ndarray]:
    if config.data.holdout:
        raise ConfigError(
            f"data.holdout={config.data.holdout} is for data that Coterie divides; leave it out "
            "with arrays that are divided already"
        )
    return *given, _nothing()


def _data(config: Config) -> tuple[Dataset, Partition, np.ndarray]:
    """The data set, who trains on what, and the training samples that are set aside."""
    if config.data.name == GIVEN:
        raise DataError("this run used arrays that a Python program passed in: resume it there")
    settings, seed = config.data, config.run.seed
    if ":" in settings.name:
        return _given(config, _read_source(config))
    dataset = datasets.load(settings.name, settings.root, resize=settings.resize)
    left, held = set_aside(dataset.y_train, seed, settings.holdout)
    labels = dataset.y_train[left]
    chosen = left[select(labels, dataset.classes, seed, settings.limit, settings.imbalance)]
    groups = dataset.groups
    if groups is not None:
        groups = replace(groups, train=groups.train[chosen])
    shares = partition.divide(
        config.partition,
        dataset.y_train[chosen],
        dataset.y_test,
        dataset.classes,
        seed,
        groups,
        dataset.shape,
    )
    shares = replace(shares, train={k: chosen[rows] for k, rows in shares.train.items()})
    return dataset, shares, held


def _read_source(config: Config) -> Given:
    """The data set and partition of the user's own source: a function that takes `data.root`."""
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
        said = str(error).splitlines()[0]
        raise ConfigError(f"{key} = {name!r} cannot be used here: {said}") from error
    return name


def _check_augment(config: Config, dataset: Dataset) -> None:
    augment = make_augment(config.objects.get("augment", config.data.augment))
    if problem := augment.find_problem(dataset.x_train):
        name = config.data.augment
        raise ConfigError(f"data.augment = {name!r} {problem}; use data.augment = 'none'")


def _check_units(config: Config, dataset: Dataset) -> None:
    """See that a method that compares pixels gets pixels."""
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
    """Build the networks; those that memory does not hold are a matter of the configuration."""
    try:
        return parts.nets(METHOD)["model"]
    except (RuntimeError, MemoryError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"the network of [net] cannot be built: {said}") from error


def _check_heads(experiment: Experiment) -> None:
    """See that evaluators find the heads they need."""
    net = experiment.parts.nets(METHOD)["model"]
    for name, evaluator in experiment.parts.evaluators.items():
        for head in evaluator.needs:
            if getattr(net, head) is None:
                objective = experiment.config.tables["objective"]["name"]
                raise ConfigError(
                    f"evaluate.with = {name!r} needs a {head}, and objective.name = {objective!r} "
                    "has none: choose other evaluators"
                )


def _check_pools(experiment: Experiment) -> None:
    """See that nothing asks sites for each other's data."""
    for name, evaluator in experiment.parts.evaluators.items():
        if evaluator.pools and experiment.config.data.name in _SITES:
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
    """See that there is a global model to take an embedding from."""
    if not experiment.config.record.embedding:
        return
    if experiment.parts.method.model(experiment.parts.start()) is None:
        name = experiment.config.tables["method"]["name"]
        raise ConfigError(
            f"record.embedding is of the global model, and method.name = {name!r} has none"
        )
