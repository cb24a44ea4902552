"""FedProx in closed form on a quadratic, written from the paper's objective."""

from pathlib import Path

import numpy as np
import pytest
import quadratic

CENTRES = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [-1.0, 1.0, 4.0]])
SIZES = [10, 20, 30]


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_the_rounds_are_those_of_the_closed_form(mu: float, tmp_path: Path) -> None:
    quadratic.run(tmp_path / "run", CENTRES, SIZES, method={"name": "fedprox", "mu": mu})
    weights = quadratic.start(tmp_path)
    rate, steps, total = 0.3, 4, quadratic.CURVATURE + mu
    for state in quadratic.server_states(tmp_path / "run"):
        # each client moves by a geometric law to the minimiser of its loss with the pull
        locals_ = []
        for centre in CENTRES:
            minimiser = (quadratic.CURVATURE * centre + mu * weights) / total
            locals_.append(minimiser + (1 - rate * total) ** steps * (weights - minimiser))
        weights = np.average(locals_, axis=0, weights=SIZES)
        found = state["model"]["backbone.vector"].numpy()
        np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-6)


def test_the_larger_mu_the_smaller_the_drift(tmp_path: Path) -> None:
    drifts = []
    for mu in (0.0, 0.5, 2.0):
        method = {"name": "fedprox", "mu": mu}
        result = quadratic.run(tmp_path / str(mu), CENTRES, SIZES, run={"rounds": 1}, method=method)
        drifts.append(result.metrics["train_drift"])
    assert drifts[0] > drifts[1] > drifts[2]


def test_accumulated_batches_count_the_pull_once(tmp_path: Path) -> None:
    for name, local in (("whole", {}), ("pieces", {"batch_size": 5, "accumulate": 1000})):
        method = {"name": "fedprox", "mu": 0.7}
        quadratic.run(tmp_path / name, CENTRES, SIZES, method=method, local=local)
    whole, pieces = (
        quadratic.server_states(tmp_path / n)[-1]["model"] for n in ("whole", "pieces")
    )
    np.testing.assert_allclose(whole["backbone.vector"], pieces["backbone.vector"], rtol=1e-5)
