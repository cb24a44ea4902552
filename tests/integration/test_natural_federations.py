"""Shipped configurations of natural federations: HAPT, on made signals of three persons."""

from pathlib import Path

import numpy as np
import pytest

import coterie

FAST = {
    "run.rounds": 1,
    "local.epochs": 1,
    "local.batch_size": 16,
    "executor.kind": "serial",
    "evaluate.last": [],
}


@pytest.fixture(scope="module")
def persons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three files of 60 windows; an activity is a mean of the first channel."""
    folder = tmp_path_factory.mktemp("hapt")
    generator = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 10)
    for person in (1, 2, 3):
        x = generator.normal(size=(60, 6, 128)) * 0.1
        x[:, 0] += y[:, np.newaxis] / 2
        np.savez(folder / f"person_{person:02d}.npz", x=x.astype(np.float32), y=y)
    return folder


@pytest.mark.parametrize("name", ["simclr", "simsiam", "fedavg", "solo"])
def test_persons_are_the_clients_and_classes_have_names(
    name: str, persons: Path, tmp_path: Path
) -> None:
    changes = {**FAST, "data.root": str(persons)}
    result = coterie.run(f"hapt/{name}", out=tmp_path / "run", progress=False, **changes)
    assert result.clients == ("person_01", "person_02", "person_03")
    assert result.classes[:2] == ("walking", "upstairs")
    metric = "client_knn_mean" if name.startswith("sim") else "client_accuracy_mean"
    assert metric in result.metrics
    assert set(result.per_client) == set(result.clients)


def test_probes_are_measured_for_every_person(persons: Path, tmp_path: Path) -> None:
    changes = {**FAST, "data.root": str(persons), "evaluate.last": ["probe_10", "own_probe"]}
    result = coterie.run("hapt/simclr", out=tmp_path / "run", progress=False, **changes)
    assert result.metrics["probe_10_labels"] == 12  # two of each activity
    assert "own_probe" in result.per_client["person_02"]
