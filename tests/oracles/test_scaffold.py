"""SCAFFOLD by a naive loop over a quadratic, written from the paper's Algorithm 1, option II."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quadratic

from coterie.core.errors import ConfigError
from coterie.methods.scaffold import effective_steps

CENTRES = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [-1.0, 1.0, 4.0]])
SIZES = [10, 20, 30]
RATE, STEPS = 0.3, 4


def naive(
    start: np.ndarray, rounds: int, momentum: float = 0.0, post_step: bool = False
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    x, c = start.copy(), np.zeros_like(start)
    own = np.zeros_like(CENTRES)
    path = []
    for _ in range(rounds):
        models, changes = [], []
        for i, centre in enumerate(CENTRES):
            y, velocity = x.copy(), np.zeros_like(x)
            for _ in range(STEPS):
                gradient = quadratic.CURVATURE * (y - centre)
                if not post_step:
                    gradient = gradient - own[i] + c
                velocity = momentum * velocity + gradient
                y = y - RATE * velocity
                if post_step:
                    y = y - RATE * (c - own[i])
            # a constant gradient g moves y by eta g in the first step, (1 + rho) eta g in the next
            moved = sum(sum(momentum**k for k in range(j + 1)) for j in range(STEPS))
            by_correction = STEPS if post_step else moved
            renewed = ((x - y) / RATE - by_correction * (c - own[i])) / moved
            models.append(y)
            changes.append(renewed - own[i])
            own[i] = renewed
        x = np.average(models, axis=0, weights=SIZES)
        c = c + np.sum(changes, axis=0) / len(CENTRES)
        path.append(x.copy())
    return path, c, own


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction": "post_step"},
        {"momentum": 0.5},
        {"momentum": 0.5, "correction": "post_step"},
    ],
)
def test_models_and_control_variates_follow_the_paper(
    options: dict[str, Any], tmp_path: Path
) -> None:
    method = {"name": "scaffold", **options}
    quadratic.run(tmp_path / "run", CENTRES, SIZES, method=method, run={"rounds": 5})
    path, c, own = naive(
        quadratic.start(tmp_path),
        5,
        momentum=options.get("momentum", 0.0),
        post_step=options.get("correction") == "post_step",
    )
    states = quadratic.server_states(tmp_path / "run")
    for state, expected in zip(states, path, strict=True):
        found = state["model"]["backbone.vector"].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states[-1]["control"]["backbone.vector"], c, rtol=1e-4, atol=1e-5)
    for client, expected in enumerate(own):
        found = quadratic.client_state(tmp_path / "run", client)["control"]["backbone.vector"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_with_everybody_there_c_is_the_mean_of_all_c_i(tmp_path: Path) -> None:
    quadratic.run(tmp_path / "run", CENTRES, SIZES, method={"name": "scaffold"})
    server = quadratic.server_states(tmp_path / "run")[-1]["control"]["backbone.vector"]
    clients = [
        quadratic.client_state(tmp_path / "run", k)["control"]["backbone.vector"] for k in range(3)
    ]
    np.testing.assert_allclose(server, np.mean(clients, axis=0), rtol=1e-5, atol=1e-6)


def test_with_few_there_c_moves_by_their_share_of_the_federation(tmp_path: Path) -> None:
    changes = {"method": {"name": "scaffold"}, "cohort": {"fraction": 0.34}, "run": {"rounds": 1}}
    result = quadratic.run(tmp_path / "run", CENTRES, SIZES, **changes)
    (client,) = result.history[0].cohort
    own = quadratic.client_state(tmp_path / "run", client)["control"]["backbone.vector"]
    server = quadratic.server_states(tmp_path / "run")[0]["control"]["backbone.vector"]
    np.testing.assert_allclose(server, own / 3, rtol=1e-6)


@pytest.mark.parametrize("sizes", [[20, 20, 20], SIZES])
def test_it_converges_to_the_minimum_of_the_plain_mean_loss(
    sizes: list[int], tmp_path: Path
) -> None:
    """Also where models are averaged by unequal sizes: c decides, and in c all count alike."""
    best = np.average(CENTRES, axis=0, weights=[1, 1, 1])
    changes: dict[str, Any] = {"run": {"rounds": 30}, "method": {"name": "scaffold"}}
    quadratic.run(tmp_path / "run", CENTRES, sizes, **changes)
    found = quadratic.server_states(tmp_path / "run")[-1]["model"]["backbone.vector"].numpy()
    np.testing.assert_allclose(found, best, atol=1e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_count_what_a_constant_gradient_moves(momentum: float, steps: int) -> None:
    moved, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        moved += velocity
    assert effective_steps(steps, momentum) == pytest.approx(moved)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("correction", ["gradient", "post_step"])
def test_control_variates_are_the_clients_gradients(
    momentum: float, correction: str, tmp_path: Path
) -> None:
    """With steps so small that little moves, c_i is the gradient at x, round after round."""
    method = {"name": "scaffold", "momentum": momentum, "correction": correction}
    quadratic.run(tmp_path / "run", CENTRES, SIZES, method=method, local={"lr": 1e-3})
    x = quadratic.start(tmp_path)
    for client, centre in enumerate(CENTRES):
        found = quadratic.client_state(tmp_path / "run", client)["control"]["backbone.vector"]
        np.testing.assert_allclose(found, quadratic.CURVATURE * (x - centre), atol=0.1)


def test_nesterov_steps_are_refused(tmp_path: Path) -> None:
    local = {"nesterov": True, "momentum": 0.9}
    method = {"name": "scaffold", "momentum": 0.9}
    with pytest.raises(ConfigError, match=r"without local\.nesterov"):
        quadratic.run(tmp_path / "run", CENTRES, SIZES, method=method, local=local)


def test_an_adaptive_local_optimiser_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scaffold.*local\.optimizer = 'sgd', not 'adam'"):
        quadratic.run(
            tmp_path / "run",
            CENTRES,
            SIZES,
            method={"name": "scaffold"},
            local={"optimizer": "adam"},
        )


def test_a_client_sends_and_receives_twice_the_model(tmp_path: Path) -> None:
    one = quadratic.run(tmp_path / "one", CENTRES, SIZES, method={"name": "fedavg"})
    two = quadratic.run(tmp_path / "two", CENTRES, SIZES, method={"name": "scaffold"})
    assert two.history[0].bytes_up == 2 * one.history[0].bytes_up
    assert two.history[0].bytes_down == 2 * one.history[0].bytes_down
