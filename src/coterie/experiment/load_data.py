"""Loads the data of a configuration, and divides them among clients."""

from dataclasses import dataclass, fields, replace

import numpy as np

from coterie.core import registry
from coterie.core.errors import ConfigError, CoterieError, DataError
from coterie.core.formatting import list_first
from coterie.core.settings import DataSettings
from coterie.data import datasets, partition
from coterie.data.datasets import Dataset
from coterie.data.partition import Partition
from coterie.data.subset import select, set_aside
from coterie.data.table import TableOptions
from coterie.experiment.config import Config
from coterie.experiment.given import Divided, divide_sites, read_sites
from coterie.experiment.own import GIVEN
from coterie.experiment.settle import follow_groups, list_unlabelled, use_groups


@dataclass(frozen=True)
class Loaded:
    """Data that are divided among clients."""

    config: Config  # with the partition that was used
    dataset: Dataset
    shares: Partition
    holdout: np.ndarray  # training samples that are set aside
    notes: tuple[str, ...] = ()


def load_data(config: Config, given: Divided | None, unseen: tuple[str, ...] = ()) -> Loaded:
    """Load the data set; decide who trains on what, and which training samples are set aside.

    The columns of a table are not fitted to the rows of sites that are `unseen`.
    """
    settings, seed = config.data, config.run.seed
    if given is None and ":" in settings.name:
        given = _read_source(config, unseen)
    if given is not None:
        for key, default in (("holdout", 0.0), ("limit", 0), ("imbalance", 1.0), ("test", "")):
            if (value := getattr(settings, key)) != default:
                raise ConfigError(
                    f"data.{key}={value} is for data that Coterie divides; leave it out with data "
                    "of sites"
                )
        return Loaded(use_groups(config), *given, np.empty(0, np.int64))
    if settings.name == GIVEN:
        raise DataError("this run used data that a Python program passed in: resume it there")
    options = replace(read_options(settings), unseen=unseen)
    datasets.check_root(settings.name, settings.root)
    dataset = datasets.load(
        settings.name,
        settings.root,
        resize=settings.resize,
        kind=settings.kind,
        table=options,
    )
    config = config.update("data", missing=datasets.settle_missing(settings.name, options))
    config = follow_groups(config, dataset)
    _check_statistics(config, dataset)
    _require_label(config, dataset)
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
    return Loaded(config, dataset, shares, holdout, _name_left_out(config, dataset, shares))


def _name_left_out(config: Config, dataset: Dataset, shares: Partition) -> tuple[str, ...]:
    """Name the groups that are too small to be clients."""
    if dataset.groups is None or config.tables["partition"]["kind"] != "by-group":
        return ()
    left_out = [name for name in dataset.groups.names if name not in shares.names]
    least = config.partition.min_samples
    if not left_out:
        return ()
    few = f"fewer than partition.min_samples = {least} training samples"
    return (f"left out, with {few}: {list_first(left_out)}",)


def read_options(settings: DataSettings) -> TableOptions:
    """Read the keys of `[data]` that are for tables."""
    keys = {f.name for f in fields(TableOptions)} & {f.name for f in fields(DataSettings)}
    return TableOptions(**{key: getattr(settings, key) for key in keys})


def _check_statistics(config: Config, dataset: Dataset) -> None:
    """Refuse clients that are not the sites by which a table was standardised."""
    if config.data.standardise != "site" or not dataset.columns:
        return
    if (kind := config.tables["partition"]["kind"]) != "by-group":
        raise ConfigError(
            f"data.standardise = 'site' makes each site a client, and partition.kind = {kind!r}; "
            "use partition.kind = 'by-group', or data.standardise = 'federated'"
        )


def _require_label(config: Config, dataset: Dataset) -> None:
    """Ask for the column of labels, where something needs labels and a table has none."""
    if not dataset.columns or config.data.label or (dataset.y_train >= 0).any():
        return
    tables, rule = config.tables, config.partition
    if rule.labels or rule.label_swap:
        what = f"partition.kind = {tables['partition']['kind']!r}"
        other = "use partition.kind=iid or quantity, or data.site=COLUMN for data of sites"
    elif config.objective.labels or config.method.labels:
        part = "objective" if config.objective.labels else "method"
        what = f"{part}.name = {tables[part]['name']!r}"
        other = f"learn without them: objective.name = {', '.join(list_unlabelled())}"
    else:
        return
    raise ConfigError(
        f"{what} needs labels, and data.label is empty; name their column with data.label=COLUMN, "
        f"or {other}"
    )


def _read_source(config: Config, unseen: tuple[str, ...]) -> Divided:
    """Call the user's own data source, a function that takes `data.root`."""
    name = config.data.name
    source = config.objects.get("data") or registry.import_own(name, "data.name")
    if not callable(source):
        raise ConfigError(f"data.name = {name!r} must be a function that takes data.root")
    form = (config.data.kind, config.data.resize)
    try:
        sites = source(config.data.root)
    except CoterieError:
        raise
    except Exception as error:  # whatever the user's own function raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(f"data.name = {name!r} failed: {reason}") from error
    options = replace(read_options(config.data), unseen=unseen)
    try:
        read = read_sites(sites, options.label, options.site, *form)
        return divide_sites(read, None, config.run.seed, form[0], options, resize=form[1])
    except DataError as error:
        raise DataError(f"data.name = {name!r} returned data for coterie.fit: {error}") from error
