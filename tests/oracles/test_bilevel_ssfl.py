"""BiLevel-SSFL: the global path of FedAvg, and personal steps written out by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from federation import assert_near, same
from two_views import (
    TwoViews,
    assert_global_path,
    assert_own_models_stay,
    assert_purely_local,
    assert_refused,
    finished,
    shift,
    simsiam,
    slopes,
    windows,
)

from coterie.core.bundle import Bundle, Tensors


def by_hand(
    fed: TwoViews, client: int, step: int, model: Tensors, own: Tensors, lam: float
) -> tuple[Tensors, Tensors]:
    """theta = theta - beta [grad L(theta) + lambda (theta - Theta_t)], and Theta beside it."""
    mine, shared, place = fed.double(own), fed.double(model), fed.place(step)
    rate = fed.parts.local.rate(place)
    for window in windows(fed.batches(client, place), fed.parts.local.accumulate):
        found = slopes(mine, simsiam, window)
        for name, weight in mine.named_parameters():
            found[name] = found[name] + lam * (weight.detach() - model[name].double())
        shift(mine, found, rate)
        shift(shared, slopes(shared, simsiam, window), rate)
    return shared.state_dict(), mine.state_dict()


@pytest.mark.parametrize("objective", ["simsiam", "byol"])
def test_the_global_model_is_that_of_fedavg_bit_for_bit(objective: str, tmp_path: Path) -> None:
    assert_global_path(tmp_path, "bilevel_ssfl", objective, lam=1.0)


def test_without_a_pull_every_client_is_on_its_own(tmp_path: Path) -> None:
    assert_purely_local(finished(tmp_path / "run", "bilevel_ssfl", lam=0.0))


@pytest.mark.parametrize("lam", [0.1, 1.0])
@pytest.mark.parametrize("local", [{}, {"accumulate": 2}, {"steps": 2, "schedule": "cosine"}])
def test_both_models_take_the_steps_by_hand(
    local: dict[str, Any], lam: float, tmp_path: Path
) -> None:
    """The anchor is the model as received; accumulated batches count the pull once."""
    fed = TwoViews(tmp_path, "bilevel_ssfl", tables={"local": local}, lam=lam)
    model, own = fed.moved(), fed.moved(seed=1)
    expected, personal = by_hand(fed, 2, 3, model, own, lam)
    done = fed.train(2, fed.place(3), model, Bundle({"personal": own}))
    assert done.state is not None
    assert_near(done.up["model"], expected, atol=1e-5)
    assert_near(done.state["personal"], personal, atol=1e-5)
    assert set(done.up.tensors) == {"model"} and not done.keeps


def test_the_default_pull(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, "bilevel_ssfl")
    assert fed.config.tables["method"]["lam"] == 0.1


def test_a_client_starts_from_the_initial_model(tmp_path: Path) -> None:
    """And not from the one that it receives, whenever it comes."""
    fed = TwoViews(tmp_path, "bilevel_ssfl", lam=1.0)
    model, place = fed.moved(), fed.place(4)
    initial = Bundle({"personal": fed.start()["model"]})
    found = [fed.train(0, place, model, state).state for state in (None, initial)]
    assert found[0] is not None and found[1] is not None
    assert same(found[0]["personal"], found[1]["personal"])
    assert same(fed.personal(0, place, model), initial["personal"])
    assert same(fed.personal(0, place, model, found[0]), found[0]["personal"])


def test_the_pull_leaves_statistics_of_norms_alone(tmp_path: Path) -> None:
    """They follow the personal model's own batches, far from the global model's as they may be."""
    fed = TwoViews(tmp_path, "bilevel_ssfl", tables={"local": {"steps": 1}}, lam=1.0)
    own, found = fed.moved(seed=1), []
    for offset in (0.0, 100.0):
        model = {n: t + offset if "running" in n else t for n, t in fed.moved().items()}
        state = fed.train(2, fed.place(3), model, Bundle({"personal": own})).state
        assert state is not None
        found.append(state["personal"])
    assert same(found[0], found[1])


def test_a_strong_pull_leads_to_the_model_as_received(tmp_path: Path) -> None:
    gaps = []
    for lam in (0.0, 1.0, 8.0):
        fed = TwoViews(tmp_path, "bilevel_ssfl", lam=lam)
        model, own = fed.moved(), fed.moved(seed=1)
        state = fed.train(2, fed.place(3), model, Bundle({"personal": own})).state
        assert state is not None
        names = [name for name, _ in fed.nets["model"].named_parameters()]
        found = [(state["personal"][name] - model[name]).square().sum() for name in names]
        gaps.append(float(torch.stack(found).sum()))
    assert gaps[0] > gaps[1] > 4 * gaps[2]


def test_a_target_of_a_personal_model_stays_with_it(tmp_path: Path) -> None:
    """BYOL: each of the two models has one of its own, and neither is sent."""
    fed = TwoViews(tmp_path, "bilevel_ssfl", "byol")
    model, place = fed.moved(), fed.place(2)
    done = fed.train(1, place, model)
    assert done.state is not None
    names = {name for name in fed.nets["model"].state_dict() if name.startswith("target.")}
    assert names and not names & set(done.up["model"])
    assert names <= set(done.state["personal"])
    assert set(done.keeps) == {"model:local"} and set(done.keeps["model:local"]) == names
    own = {name: done.state["personal"][name] for name in names}
    assert not same(own, done.keeps["model:local"], "target.backbone")
    again = fed.train(1, fed.place(3), model, done.state, done.keeps)
    other = fed.train(
        1, fed.place(3), model, Bundle({"personal": {**done.state["personal"], **_ones(own)}})
    )
    assert again.state is not None and other.state is not None
    assert not same(again.state["personal"], other.state["personal"], "backbone")  # it goes on


def _ones(weights: Tensors) -> Tensors:
    return {name: torch.ones_like(tensor) for name, tensor in weights.items()}


def test_own_models_stay_with_their_clients(tmp_path: Path) -> None:
    assert_own_models_stay(tmp_path, "bilevel_ssfl")


def test_other_objectives_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, "bilevel_ssfl", "supervised")
