"""What follows from the data: who is a client, which views there are, what can be measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.data.datasets import Dataset, Groups, Raw, store
from coterie.data.partition import Partition
from coterie.experiment.config import load
from coterie.experiment.prepare import prepare
from coterie.experiment.settle import follow_groups, list_unlabelled, settle

SAMPLES = 20


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Small grey images at two sites; a quarter of the labels is missing."""
    x = np.zeros((SAMPLES, 1, 8, 8), np.uint8)
    y = np.where(np.arange(SAMPLES) % 4, np.arange(SAMPLES) % 2, -1)
    groups = Groups(np.arange(SAMPLES) % 2, np.empty(0), ("north", "south"))
    return store("mine", Raw(x, y, x, y, groups=groups), tmp_path)


def unlabelled(dataset: Dataset, tmp_path: Path) -> Dataset:
    x, none = dataset.x_train, np.full(SAMPLES, -1)
    return store("bare", Raw(x, none, x, none), tmp_path)


def shares() -> Partition:
    return Partition({0: np.arange(10), 1: np.arange(10, 20)}, {}, ("a", "b"))


@pytest.mark.parametrize(
    ("source", "changes", "kind"),
    [
        ("digits/fedavg", {"data.name": "sites"}, "by-group"),
        ("digits/fedavg", {"data.name": "sites", "partition.kind": "iid"}, "iid"),
        ("digits/fedavg", {"data.name": "digits"}, "dirichlet"),
        ("digits/fedavg", {}, "dirichlet"),
        ({"data": {"name": "sites"}}, {}, "by-group"),
        ({"data": {"name": "sites"}, "partition": {"kind": "quantity"}}, {}, "quantity"),
    ],
)
def test_a_partition_counts_for_the_data_that_its_file_names(
    source: Any, changes: dict[str, Any], kind: str, dataset: Dataset
) -> None:
    config = follow_groups(load(source, changes), dataset)
    assert config.tables["partition"]["kind"] == kind


def test_keys_of_the_partition_are_those_of_by_group(dataset: Dataset) -> None:
    asked = load("digits/fedavg", {"data.name": "sites", "partition.min_samples": 4})
    assert follow_groups(asked, dataset).partition.min_samples == 4
    with pytest.raises(ConfigError, match=r"partition has no key 'clients'.* by-group takes: "):
        follow_groups(load("digits/fedavg", {"data": "sites", "partition.clients": 4}), dataset)


def test_samples_without_a_label_are_not_trained_on(dataset: Dataset) -> None:
    settled = settle(load({}), dataset, shares())
    assert {c: len(rows) for c, rows in settled.shares.train.items()} == {0: 7, 1: 8}
    assert settled.notes == ("5 of 20 training samples have no label and are not trained on",)
    assert settled.config.tables["data"]["augment"] == "none"


def test_evaluators_that_need_labels_are_left_out_without_any(
    dataset: Dataset, tmp_path: Path
) -> None:
    entries = ["knn", {"name": "knn", "layer": "z", "as": "z_knn"}, "geometry"]
    changes = {"objective": "simclr", "evaluate": {"with": entries, "last": ["probe_1"]}}
    settled = settle(load({}, changes), unlabelled(dataset, tmp_path), shares())
    assert settled.config.tables["evaluate"]["with"] == ["geometry"]
    assert settled.config.tables["evaluate"]["last"] == []
    assert list(settled.config.evaluators) == ["geometry"]
    assert settled.config.evaluate.metric == "feature_std"
    assert "not measured, as the data have no labels: knn, z_knn, probe_1" in settled.notes


def test_a_metric_of_another_evaluator_stays(dataset: Dataset, tmp_path: Path) -> None:
    evaluate = {"with": ["knn", "geometry"], "metric": "effective_rank"}
    changes = {"objective": "simclr", "evaluate": evaluate}
    settled = settle(load({}, changes), unlabelled(dataset, tmp_path), shares())
    assert settled.config.evaluate.metric == "effective_rank"


def test_a_settled_configuration_settles_to_itself(dataset: Dataset, tmp_path: Path) -> None:
    bare = unlabelled(dataset, tmp_path)
    once = settle(load({}, {"objective": "byol"}), bare, shares()).config
    again = settle(load(once.tables), bare, shares())
    assert again.config.tables == once.tables
    assert not again.notes


def test_all_objectives_but_one_need_no_labels() -> None:
    assert list_unlabelled() == ("byol", "rotation", "simclr", "simsiam", "swav")


def test_a_method_with_views_of_its_own_gets_two(dataset: Dataset) -> None:
    changes = {"method": "orchestra", "objective": "rotation"}
    assert settle(load({}, changes), dataset, shares()).config.data.augment == "resized-crop"
    with pytest.raises(ConfigError, match=r"data\.augment = 'none' makes the two views"):
        settle(load({}, {**changes, "data.augment": "none"}), dataset, shares())


def test_means_over_sites_rule_unseen_clients_out_that_are_no_sites(tmp_path: Path) -> None:
    changes: dict[str, object] = {"cohort.unseen": 1}
    drawn = {**changes, "partition.kind": "iid", "partition.clients": 3}
    with pytest.raises(ConfigError, match=r"cohort\.unseen = 1: data\.standardise = 'federated'"):
        prepare(load("heart/fedavg", drawn), tmp_path)
    kept = prepare(load("heart/fedavg", {**changes, "data.standardise": "site"}), tmp_path)
    assert len(kept.unseen) == 1


def test_columns_are_not_fitted_to_unseen_sites(tmp_path: Path) -> None:
    """The training rows of the others alone have the mean 0 and the deviation 1."""
    kept = prepare(load("heart/fedavg", {"cohort.unseen": 1}), tmp_path)
    rows = np.concatenate(list(kept.trained.train.values()))
    assert np.allclose(kept.dataset.x_train[rows].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(kept.dataset.x_train[rows].std(axis=0, ddof=1), 1, atol=1e-5)
    (own,) = (kept.partition.train[client] for client in kept.spec.unseen)
    assert np.abs(kept.dataset.x_train[own].mean(axis=0)).max() > 0.1
