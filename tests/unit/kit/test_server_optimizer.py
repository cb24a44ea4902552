"""What the server optimiser does to a state: which names it moves, and what it leaves beside."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.settings import ServerSettings
from coterie.kit.server_optimizer import step_server

PARAMETERS = frozenset({"w"})
ADAPTIVE = ["adam", "yogi", "adagrad"]


def weights(value: float, mean: float = 0.0, count: int = 1) -> dict[str, Tensor]:
    return {
        "w": torch.full((3,), value),
        "running_mean": torch.full((3,), mean),
        "num_batches_tracked": torch.tensor(count),
    }


def state() -> Bundle:
    return Bundle({"model": weights(1.0), "other": {"x": torch.ones(1)}}, {"note": "kept"})


def moments(server: Bundle) -> list[dict[str, Tensor]]:
    """What the optimiser put beside the groups of the method."""
    return [server[group] for group in server.tensors if group.startswith("server_")]


def test_none_takes_the_average_as_it_is() -> None:
    averaged = weights(0.1)
    moved = step_server(ServerSettings(), state(), averaged, PARAMETERS)
    assert all(torch.equal(moved["model"][name], averaged[name]) for name in averaged)
    assert set(moved.tensors) == {"model", "other"}
    assert moved.scalars == {"note": "kept"}


def test_none_with_a_rate_goes_part_of_the_way() -> None:
    moved = step_server(
        ServerSettings(lr=0.5), state(), weights(0.0, mean=4.0, count=9), PARAMETERS
    )
    assert moved["model"]["w"].tolist() == [0.5] * 3
    assert moved["model"]["running_mean"].tolist() == [4.0] * 3
    assert moved["model"]["num_batches_tracked"].item() == 9
    assert moments(moved) == []


@pytest.mark.parametrize("optimizer", ["momentum", *ADAPTIVE])
def test_buffers_take_the_plain_average(optimizer: str) -> None:
    server, step = state(), partial(step_server, ServerSettings(optimizer=optimizer))
    for round in range(3):
        server = step(server, weights(0.5, mean=7.0 + round, count=5 + round), PARAMETERS)
        assert server["model"]["running_mean"].tolist() == [7.0 + round] * 3
        assert server["model"]["num_batches_tracked"].item() == 5 + round
    assert all(set(moment) == {"w"} for moment in moments(server))


@pytest.mark.parametrize(
    ("optimizer", "count"), [("momentum", 1), *((name, 2) for name in ADAPTIVE)]
)
def test_moments_stand_in_the_state(optimizer: str, count: int) -> None:
    before = state()
    moved = step_server(ServerSettings(optimizer=optimizer), before, weights(0.5), PARAMETERS)
    assert len(moments(moved)) == count
    assert len(moved.tensors) == 2 + count
    assert set(before.tensors) == {"model", "other"}
    assert before["model"]["w"].tolist() == [1.0] * 3
    assert moved["model"]["w"].dtype == torch.float32
    assert all(moment["w"].dtype == torch.float32 for moment in moments(moved))


@pytest.mark.parametrize("optimizer", ["momentum", *ADAPTIVE])
def test_a_state_that_was_saved_goes_on_as_if_it_had_not_been(optimizer: str) -> None:
    step = partial(step_server, ServerSettings(optimizer=optimizer, lr=0.3))
    straight = resumed = state()
    for round in range(4):
        averaged = weights(0.1 * round)
        straight = step(straight, averaged, PARAMETERS)
        resumed = step(codec.decode(codec.encode(resumed)), averaged, PARAMETERS)
    assert straight.digest() == resumed.digest()


@pytest.mark.parametrize("optimizer", ["momentum", *ADAPTIVE])
def test_no_update_no_move(optimizer: str) -> None:
    server, step = state(), partial(step_server, ServerSettings(optimizer=optimizer))
    for _ in range(3):
        server = step(server, weights(1.0), PARAMETERS)
    assert server["model"]["w"].tolist() == [1.0] * 3


def test_the_group_is_named() -> None:
    server = Bundle({"model": weights(1.0), "sensor": weights(2.0)})
    moved = step_server(ServerSettings(lr=0.5), server, weights(0.0), PARAMETERS, "sensor")
    assert moved["sensor"]["w"].tolist() == [1.0] * 3
    assert moved["model"]["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("optimizer", ["momentum", *ADAPTIVE])
def test_two_groups_do_not_share_moments(optimizer: str) -> None:
    step = partial(step_server, ServerSettings(optimizer=optimizer))
    alone = Bundle({"model": weights(1.0)})
    both = Bundle({"model": weights(1.0), "sensor": weights(2.0)})
    for _ in range(3):
        alone = step(alone, weights(0.5), PARAMETERS)
        both = step(both, weights(0.5), PARAMETERS)
        both = step(both, weights(-9.0), PARAMETERS, "sensor")
    assert torch.equal(both["model"]["w"], alone["model"]["w"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_weights_keep_their_type(dtype: torch.dtype) -> None:
    server = Bundle({"model": {"w": torch.ones(2, dtype=dtype)}})
    averaged = {"w": torch.zeros(2, dtype=dtype)}
    moved = step_server(ServerSettings("momentum", lr=0.25), server, averaged, PARAMETERS)
    assert moved["model"]["w"].dtype == moments(moved)[0]["w"].dtype == dtype
    assert moved["model"]["w"].tolist() == [0.75] * 2


@pytest.mark.parametrize("settings", [{}, {"optimizer": "momentum"}])
def test_an_unknown_group_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(KeyError, match="no group 'sensor'"):
        step_server(ServerSettings(**settings), state(), weights(0.0), PARAMETERS, "sensor")
