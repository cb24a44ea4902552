"""Every client's own model on the whole test set."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from points import Points
from torch import nn

import coterie
from coterie.core.errors import ConfigError
from coterie.data.sources import digits
from coterie.evaluate.own_sensors import OwnSensors
from coterie.kit.networks import Frozen
from coterie.nets.heads import Network

CLASSES = 5


def measure(
    held: list[int], predicted: list[int], true: list[int], **fields: int
) -> Mapping[str, float]:
    """Metrics of a classifier that says `predicted`, on a client with the classes `held`."""
    net = Frozen(Network(nn.Identity(), classifier=nn.Identity()))
    train = (torch.zeros(len(held), CLASSES), torch.tensor(held))
    logits = torch.eye(CLASSES)[torch.tensor(predicted)]
    data = Points(train, (logits, torch.tensor(true)))
    return OwnSensors(**fields)(net, data, 0)


def test_the_accuracy_is_made_of_held_and_of_other_classes() -> None:
    true = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    found = measure([0, 1, 1], [0, 1, 1, 1, 0, 2, 1, 1, 0, 0], true)
    assert found == {
        "own_sensors": pytest.approx(0.4),
        "own_sensors_held": pytest.approx(0.75),
        "own_sensors_other": pytest.approx(1 / 6),
        "own_sensors_from_held": pytest.approx(0.3),  # 2 of 5 classes, 3 of 4 right
    }
    share = 2 / CLASSES
    mixed = share * found["own_sensors_held"] + (1 - share) * found["own_sensors_other"]
    assert found["own_sensors"] == pytest.approx(mixed)


def test_a_client_with_all_classes_has_no_others() -> None:
    found = measure([0, 1, 2, 3, 4], [0, 1, 2, 3, 3], [0, 1, 2, 3, 4])
    assert set(found) == {"own_sensors", "own_sensors_held", "own_sensors_from_held"}
    assert found["own_sensors"] == found["own_sensors_held"] == pytest.approx(0.8)


def test_every_nth_test_sample_may_be_taken() -> None:
    assert measure([0], [0, 1, 1, 1], [0, 0, 1, 0], every=2)["own_sensors"] == 1.0


def test_it_is_summarised_over_clients() -> None:
    scores = {
        c: {"own_sensors": v, "own_sensors_held": 2 * v, "own_sensors_from_held": v}
        for c, v in enumerate((0.1, 0.3))
    }
    found = OwnSensors().summarise(scores)
    assert found["client_own_sensors_mean"] == pytest.approx(0.2)
    assert found["client_own_sensors_held_mean"] == pytest.approx(0.4)
    assert "client_own_sensors_other_mean" not in found
    assert OwnSensors().headline == "client_own_sensors_mean"


def test_clients_encode_the_whole_test_set_with_their_own_statistics(tmp_path: Path) -> None:
    """By hand: each client's file, which has the statistics that it kept."""
    method = {"name": "mfcl", "share_representations": True, "share_labels": True}
    method |= {"joint": "projection", "sensor_norm": "bn", "sensor_width": 4, "sense_rounds": 2}
    method |= {"server_batch": 100, "server_warmup": 0}
    tables = {
        "run": {"rounds": 2},
        "data": {"name": "digits", "limit": 300, "augment": "resized-crop"},
        "partition": {"kind": "windows", "scenario": 2},
        "net": {"backbone": "mlp", "projection": 16, "bn_buffers": "local"},
        "objective": {"name": "simclr", "hidden": 16},
        "method": method,
        "executor": {"kind": "serial"},
        "evaluate": {"every": 0, "with": ["own_sensors"]},
    }
    result = coterie.run(tables, out=tmp_path / "run")
    assert len(result.per_client) == 10
    raw = digits.read("")
    for name in list(result.per_client)[:3]:
        by_hand = result.score(raw.x_test, raw.y_test, client=name)
        assert result.per_client[name]["own_sensors"] == pytest.approx(by_hand, abs=0.003)
    accuracies = [own["own_sensors"] for own in result.per_client.values()]
    assert result.metrics["client_own_sensors_mean"] == pytest.approx(np.mean(accuracies))
    for own in result.per_client.values():
        expected = 0.2 * own["own_sensors_held"]  # two of ten classes of the whole test set
        assert own["own_sensors_from_held"] == pytest.approx(expected, abs=0.02)


def test_data_of_sites_are_refused(tmp_path: Path) -> None:
    sites = {name: (np.eye(20, 5), np.arange(20) % 2) for name in ("north", "south")}
    with pytest.raises(ConfigError, match="tests every client's model on the test data of all"):
        coterie.fit(sites, evaluate="own_sensors", rounds=1, out=tmp_path / "run")
