"""What follows from the data for a configuration: views, labels, evaluators, who is a client.

Everything here happens before a run starts. A choice that the data rule out is an error by name,
or is left out with a note.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.formatting import counted
from coterie.core.task import ClientId, ClientInfo
from coterie.data.augment import choose_views, make_augment
from coterie.data.datasets import Dataset
from coterie.data.partition import Partition
from coterie.data.partitions.by_group import ByGroup
from coterie.engine.cohort import draw_unseen, list_clients
from coterie.experiment.config import Config
from coterie.experiment.schema import validate, write_fields
from coterie.kit.objective import Objective

_CLASSES = 2  # the fewest that a classifier can separate


@dataclass(frozen=True)
class Settled:
    """A configuration that fits the data, the clients that take part, and notes for the user."""

    config: Config
    shares: Partition
    unseen: tuple[ClientId, ...] = ()  # clients that never train and are only tested
    notes: tuple[str, ...] = ()

    @property
    def unseen_names(self) -> tuple[str, ...]:
        """The names of the unseen clients."""
        named = zip(self.shares.clients, self.shares.names, strict=True)
        return tuple(name for client, name in named if client in self.unseen)


def follow_groups(config: Config, dataset: Dataset) -> Config:
    """Make the groups of the data the clients, unless the partition was stated for these data."""
    if dataset.groups is None or config.by_group is None:
        return config
    try:
        return use_groups(config, config.by_group)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; the data have sites, which are the clients: give partition.kind to divide "
            "them otherwise"
        ) from error


def use_groups(config: Config, keys: Mapping[str, Any] | None = None) -> Config:
    """Divide the data by their own groups."""
    rule = validate("partition", "by-group", ByGroup, keys or {}, main=("kind",))
    return config.with_part("partition", rule, {"kind": "by-group", **write_fields(rule)})


def settle(config: Config, dataset: Dataset, shares: Partition) -> Settled:
    """Fit the configuration to the data, or say why it cannot be."""
    config, views = _settle_views(config, dataset)
    shares, unlabelled = _select_labelled(config, dataset, shares)
    rows = np.concatenate(list(shares.train.values()))
    trains, tests = (dataset.y_train[rows] >= 0).any(), (dataset.y_test >= 0).any()
    config, left_out = _settle_evaluators(config, bool(trains), bool(tests))
    unseen, kept = _choose_unseen(config, dataset, shares)
    return Settled(config, shares, unseen, (*views, *unlabelled, *left_out, *kept))


def settle_remote(
    config: Config, dataset: Dataset, shares: Partition, labelled: bool, tested: bool
) -> Settled:
    """Fit the configuration to data that are elsewhere, of which `dataset` has the form only.

    `labelled` says whether clients have labels, `tested` whether the server has test samples: its
    evaluators have nothing to measure with otherwise.
    """
    config, views = _settle_views(config, dataset)
    config, left_out = _settle_evaluators(config, labelled, labelled)
    on_server = (
        []
        if tested
        else [
            key for key, part in config.evaluators.items() if getattr(part, "where", "") == "server"
        ]
    )
    if on_server:
        named = ", ".join(on_server)
        config, notes = _leave_out(
            config, on_server, f"not measured, as the server has no test samples: {named}"
        )
        left_out = (*left_out, *notes)
    unseen, kept = _choose_unseen(config, dataset, shares)
    return Settled(config, shares, unseen, (*views, *left_out, *kept))


def list_unlabelled() -> tuple[str, ...]:
    """List the shipped objectives that need no labels."""
    kind: type[Any] = Objective
    return tuple(
        name
        for name in registry.names("objectives")
        if not registry.find("objectives", name, kind, "objective.name").labels
    )


def _settle_views(config: Config, dataset: Dataset) -> tuple[Config, tuple[str, ...]]:
    """Resolve `data.augment = "auto"`; refuse two views that would be equal."""
    name, views = config.data.augment, config.method.views or config.objective.views
    if name == "none" and sum(view in ("train", "second") for view in views) > 1:
        objective = config.tables["objective"]["name"]
        raise ConfigError(
            f"data.augment = 'none' makes the two views of objective.name = {objective!r} equal; "
            "leave it out, or choose another"
        )
    if name != "auto":
        return config, ()
    chosen = choose_views(dataset.kind, tuple(dataset.shape), views)
    if chosen == "simsiam" and make_augment(chosen).find_problem(dataset.x_train):
        chosen = "resized-crop"  # colours beyond [0, 1]
    note = () if chosen == "none" else (f"data.augment = auto: views by {chosen!r}",)
    return config.update("data", augment=chosen), note


def _select_labelled(
    config: Config, dataset: Dataset, shares: Partition
) -> tuple[Partition, tuple[str, ...]]:
    """Leave samples without a label out of supervised training, and sites that have no others."""
    if not (config.objective.labels or config.method.labels):
        return shares, ()
    what = "objective" if config.objective.labels else "method"
    named = f"{what}.name = {config.tables[what]['name']!r}"
    labels = dataset.y_train
    kept = {client: rows[labels[rows] >= 0] for client, rows in shares.train.items()}
    total, left = (sum(map(len, part.values())) for part in (shares.train, kept))
    if not left:
        raise ConfigError(
            f"{named} needs labels, and the data have none; these need none: "
            f"objective.name = {', '.join(list_unlabelled())}"
        )
    classes = np.unique(labels[np.concatenate(list(kept.values()))])
    if len(classes) < _CLASSES:
        only = dataset.class_names[int(classes[0])]
        raise ConfigError(
            f"{named} needs two classes or more, and all labels are {only!r} (-1 and empty ones "
            "count as missing)"
        )
    if left == total:
        return shares, ()
    absent = [c for c in shares.clients if len(shares.train[c]) and not len(kept[c])]
    notes = [f"{total - left} of {total} training samples have no label and are not trained on"]
    if absent:
        names = dict(zip(shares.clients, shares.names, strict=True))
        listed = ", ".join(names[client] for client in absent)
        notes.append(f"without any label, and so without a part in the training: {listed}")
    return shares.restrict({c: rows for c, rows in kept.items() if c not in absent}), tuple(notes)


def _settle_evaluators(config: Config, trains: bool, tests: bool) -> tuple[Config, tuple[str, ...]]:
    """Leave out evaluators that need labels where there are none to train on or to test with."""
    if trains and tests:
        return config, ()
    gone = [key for key, evaluator in config.evaluators.items() if evaluator.labels]
    if not gone:
        return config, ()
    lacking = "the data have" if not (trains or tests) else f"no {_part(trains)} sample has"
    label = "no labels" if not (trains or tests) else "a label"
    return _leave_out(config, gone, f"not measured, as {lacking} {label}: {', '.join(gone)}")


def _leave_out(
    config: Config, gone: Collection[str], reason: str
) -> tuple[Config, tuple[str, ...]]:
    """Leave evaluators out; the metric of a run becomes one that is still measured."""
    kept = {key: part for key, part in config.evaluators.items() if key not in gone}
    settings, table = config.evaluate, config.tables["evaluate"]
    changes: dict[str, Any] = {}
    for field in ("evaluators", "last"):
        changes[field] = tuple(key for key in getattr(settings, field) if key in kept)
    entries = {
        name: [entry for entry in table[name] if _key(entry) in kept] for name in ("with", "last")
    }
    notes = [reason]
    if not kept:
        notes.append("nothing is measured; evaluate.with=geometry needs no labels")
    lost = [config.evaluators[key].headline for key in gone]
    metrics = [part.headline for part in kept.values() if part.headline]
    concerned = any(name and name in settings.metric for name in (*lost, *gone))
    if metrics and settings.metric not in metrics and concerned:
        changes["metric"] = metrics[0]
        notes.append(f"evaluate.metric = {metrics[0]!r} instead of {settings.metric!r}")
    config = config.update("evaluate", **changes)
    config = replace(
        config,
        evaluators=kept,
        tables={**config.tables, "evaluate": {**config.tables["evaluate"], **entries}},
    )
    return config, tuple(notes)


def _part(trains: bool) -> str:
    """Name the part of the data that has no labels, where the other has."""
    return "test" if trains else "training"


def _choose_unseen(
    config: Config, dataset: Dataset, shares: Partition
) -> tuple[tuple[ClientId, ...], tuple[str, ...]]:
    """Draw the clients of `cohort.unseen`, and name them; or say why there cannot be so many."""
    count, clients = config.cohort.unseen, list_clients(shares)
    if not count:
        return (), ()
    kind = config.tables["partition"]["kind"]
    if dataset.columns and config.data.standardise == "federated" and kind != "by-group":
        raise ConfigError(
            f"cohort.unseen = {count}: data.standardise = 'federated' takes means over sites, and "
            f"with partition.kind = {kind!r} the clients are none; use 'by-group', or "
            "data.standardise = 'none'"
        )
    unseen = choose_unseen(config, clients)
    names = ", ".join(info.name for info in clients if info.id in unseen)
    return unseen, (f"cohort.unseen = {count}: never trained on, only tested: {names}",)


def choose_unseen(config: Config, clients: Sequence[ClientInfo]) -> tuple[ClientId, ...]:
    """Draw the clients of `cohort.unseen`, or say why there cannot be so many."""
    count = config.cohort.unseen
    key = f"cohort.unseen = {count}"
    if config.method.pooled:
        name = config.tables["method"]["name"]
        raise ConfigError(
            f"{key}: method.name = {name!r} merges all clients; leave one of them out"
        )
    if count >= len(clients):
        raise ConfigError(
            f"{key} leaves none of {counted(len(clients), 'client')} to train: use "
            f"{len(clients) - 1} or fewer"
        )
    tested = sum(info.tests > 0 for info in clients)
    if count > tested:
        raise ConfigError(
            f"{key}, but {tested} of {len(clients)} clients have test samples: lower it"
        )
    if not any(evaluator.where == "client" for evaluator in config.evaluators.values()):
        raise ConfigError(
            f"{key} needs an evaluator on clients: add 'personal' or, without a classifier, "
            "'personal_knn' to evaluate.with"
        )
    return draw_unseen(clients, count, config.run.seed)


def _key(entry: Any) -> str:
    """The key of an entry of `evaluate.with`."""
    return entry if isinstance(entry, str) else str(entry.get("as", entry["name"]))
