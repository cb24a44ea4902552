"""SOLO: as many separate trainings as there are clients."""

from pathlib import Path

import numpy as np
import quadratic

import toy

CENTRES = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [-1.0, 1.0, 4.0]])


def test_every_client_goes_to_its_own_minimum_and_nothing_is_sent(tmp_path: Path) -> None:
    result = quadratic.run(
        tmp_path / "run", CENTRES, [10, 20, 30], method={"name": "solo"}, run={"rounds": 20}
    )
    for client, centre in enumerate(CENTRES):
        found = quadratic.client_state(tmp_path / "run", client)["model"]["backbone.vector"]
        np.testing.assert_allclose(found, centre, atol=1e-5)
    assert sum(event.bytes_up + event.bytes_down for event in result.history) == 0


def test_clients_start_from_different_weights(tmp_path: Path) -> None:
    changes = {"method": {"name": "solo"}, "local": {"lr": 1e-12}, "run": {"rounds": 1}}
    quadratic.run(tmp_path / "run", np.zeros((3, 3)), [10, 10, 10], **changes)
    starts = [
        quadratic.client_state(tmp_path / "run", k)["model"]["backbone.vector"].numpy()
        for k in range(3)
    ]
    assert not np.allclose(starts[0], starts[1])
    assert not np.allclose(starts[1], starts[2])


def test_accuracy_is_the_mean_of_the_clients_models_on_the_global_test_set(
    toy_data: Path, tmp_path: Path
) -> None:
    result = toy.run(toy_data, tmp_path / "run", method={"name": "solo"})
    assert not (tmp_path / "run" / "model.safetensors").exists()
    dataset = toy.prepared(toy_data, tmp_path).dataset
    accuracies = [
        result.score(dataset.x_test, dataset.y_test, client=client) for client in result.clients
    ]
    assert len(accuracies) == toy.CLIENTS
    np.testing.assert_allclose(result.metrics["accuracy"], np.mean(accuracies))
    np.testing.assert_allclose(result.metrics["accuracy_std"], np.std(accuracies))
