"""The data of one site: read as a run on this machine would read them, and told of by a card.

The split into training and test samples is the one that the site has as a part of
`data.name = "sites"`, so that a federation of real sites and a simulation of it have equal bits.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import list_first
from coterie.core.task import ClientId
from coterie.data import datasets
from coterie.data.checks import check_resize
from coterie.data.datasets import Dataset, Raw
from coterie.data.formats.locate import expand_path
from coterie.data.formats.tables import ENDINGS
from coterie.data.labels import MISSING, ClassNames
from coterie.data.partition import Partition
from coterie.deploy.federation import Card, SampleForm
from coterie.deploy.handshake import Declined
from coterie.deploy.own_table import OwnTable
from coterie.engine.spec import name_kernels
from coterie.experiment.config import Config
from coterie.experiment.load_data import read_options


@dataclass(frozen=True)
class OwnData:
    """Where a site has its data: as `data.name` and `data.root` of a run."""

    root: str
    source: str = ""  # empty: it follows from what is there

    @property
    def is_table(self) -> bool:
        """Whether it is a table with named columns, by its source or path."""
        return (self.source or choose_source(self.root)) == "table"

    def load(self, config: Config) -> Dataset:
        """Read samples, by the keys of `[data]` that all sites share."""
        source = self.source or choose_source(self.root)
        dataset = datasets.load(
            source,
            self.root,
            resize=config.data.resize,
            kind=config.data.kind,
            table=read_options(config.data),
        )
        if dataset.columns:
            raise Declined(f"the tables of {source!r} cannot be deployed: bring a .csv or .parquet")
        return dataset

    def read_table(self, config: Config) -> OwnTable:
        """Read a table, which is encoded when the columns of all sites are known."""
        check_resize("table", config.data.resize, images=False)
        if (kind := config.data.kind) not in ("auto", "table"):
            raise ConfigError(f"data.kind = {kind!r}, and {self.root} is a table")
        return OwnTable.read(self.root, read_options(config.data))


def choose_source(root: str) -> str:
    """Tell by a path which data set it has: an .npz file, a table, or a folder of images."""
    path = expand_path(root)
    if not root or not path.exists():
        raise DataError(f"--data {root!r} is not there; give a file or a folder")
    if path.is_dir():
        return "folder"
    if path.suffix == ".npz":
        return "arrays"
    if path.suffix.lower() in ENDINGS:
        return "table"
    raise DataError(
        f"{path} is of no known kind; give a file .npz, .csv or .parquet, a folder of images, or "
        "name the data set with --source"
    )


def make_card(config: Config, dataset: Dataset | OwnTable, stated: ClassNames = ()) -> Card:
    """Tell of data what a server has to know; `Declined` if this site cannot take part."""
    train, least = select_rows(config, dataset), config.partition.min_samples
    if len(train) < least:
        few = "labelled training samples" if _needs_labels(config) else "training samples"
        label = config.data.label
        hint = (
            "" if label or not isinstance(dataset, OwnTable) else "; the server has no data.label"
        )
        raise Declined(f"it has {len(train)} {few}, and partition.min_samples = {least}{hint}")
    if stated:
        check_classes(dataset, stated)
    labelled = bool((dataset.y_train >= 0).any() and (dataset.y_test >= 0).any())
    classes = () if stated else dataset.class_names
    sizes = (len(train), len(dataset.y_test))
    kernels = name_kernels(config.net)
    if isinstance(dataset, OwnTable):
        return Card(None, *sizes, classes, labelled, dataset.describe(), kernels)
    return Card(describe_form(dataset), *sizes, classes, labelled, kernels=kernels)


def describe_form(dataset: Dataset) -> SampleForm:
    """Describe one sample of a data set."""
    return SampleForm(
        dataset.kind,
        tuple(dataset.shape),
        dataset.x_train.dtype.name,
        tuple(map(float, dataset.mean)),
        tuple(map(float, dataset.std)),
        tuple(dataset.columns),
    )


def select_rows(config: Config, dataset: Dataset | OwnTable) -> np.ndarray:
    """Select the samples to train on: those with a label, where labels are needed."""
    if _needs_labels(config):
        return np.flatnonzero(dataset.y_train >= 0)
    return np.arange(len(dataset.y_train))


def check_classes(dataset: Dataset | OwnTable, classes: ClassNames) -> None:
    """Refuse data with a class that the federation does not have."""
    if strange := [name for name in dataset.class_names if name not in classes]:
        raise Declined(
            f"it has the class {strange[0]!r}; the run has: {list_first(list(map(str, classes)))}"
        )


def number_classes(dataset: Dataset, classes: ClassNames) -> Dataset:
    """Number the labels by the classes of the whole federation; writes a copy if that differs."""
    check_classes(dataset, classes)
    if dataset.class_names == classes:
        return dataset
    numbers = np.array([*(classes.index(name) for name in dataset.class_names), MISSING], np.int64)
    raw = Raw(
        dataset.x_train,
        numbers[dataset.y_train],  # the label -1 is the last
        dataset.x_test,
        numbers[dataset.y_test],
        len(classes),
        dataset.mean,
        dataset.std,
        class_names=classes,
        columns=dataset.columns,
    )
    stored = datasets.store(dataset.name, raw)
    return replace(stored, columns=dataset.columns)


def make_share(config: Config, dataset: Dataset, client: ClientId, name: str) -> Partition:
    """Make the one client of this site."""
    rows = {client: select_rows(config, dataset)}
    return Partition(rows, {client: np.arange(len(dataset.y_test))}, (name,))


def _needs_labels(config: Config) -> bool:
    return config.objective.labels or config.method.labels


def check_folder(folder: Path) -> None:
    """Refuse a file where the folder of a site has to be."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, and this site needs a folder there: --folder DIR")
