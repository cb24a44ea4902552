"""Centralised training: the union of the data on one client."""

import json
from pathlib import Path

import numpy as np
import quadratic

import toy

CENTRES = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [-1.0, 1.0, 4.0]])


def test_it_descends_the_loss_of_the_union(tmp_path: Path) -> None:
    sizes = [10, 20, 30]
    quadratic.run(tmp_path / "run", CENTRES, sizes, method={"name": "centralized"})
    weights, mean = quadratic.start(tmp_path), np.average(CENTRES, axis=0, weights=sizes)
    for state in quadratic.server_states(tmp_path / "run"):
        weights = mean + (1 - 0.3 * quadratic.CURVATURE) ** 4 * (weights - mean)
        found = state["model"]["backbone.vector"].numpy()
        np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-6)


def test_it_is_one_client_with_all_samples(toy_data: Path, tmp_path: Path) -> None:
    result = toy.run(toy_data, tmp_path / "run", method={"name": "centralized"})
    assert result.history[0].cohort == [0]
    summary = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert [client["train"] for client in summary["clients"]] == [180]
