"""Per-SSFL: the global path of FedAvg, and Algorithm 2 as corrected, written out by hand."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import assert_near, same
from torch import Tensor
from two_views import (
    Spy,
    TwoViews,
    assert_global_path,
    assert_own_models_stay,
    assert_purely_local,
    assert_refused,
    cosine,
    distance,
    equal,
    finished,
    shift,
)

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, Tensors
from coterie.methods.per_ssfl import pull
from coterie.nets.heads import Network, Outputs

VARIANTS: list[dict[str, Any]] = [
    {},
    {"anchor": "received"},
    {"independent_views": True},
    {"anchor": "received", "independent_views": True},
]


def outputs(net: Network, batch: Batch) -> list[Outputs]:
    return [net(view.double()) for view in batch.views]


def symmetric(one: Outputs, two: Outputs) -> Tensor:
    assert one.p is not None and two.p is not None
    return 0.5 * distance(one.p, two.z) + 0.5 * distance(two.p, one.z)


def descend(net: Network, loss: Tensor, rate: float) -> None:
    trained = dict(net.named_parameters())
    found = torch.autograd.grad(loss, list(trained.values()))
    shift(net, dict(zip(trained, found, strict=True)), rate)


def by_hand(
    fed: TwoViews,
    pairs: Iterable[tuple[Batch, Batch]],
    model: Tensors,
    own: Tensors,
    lam: float,
    anchor: str = "current",
) -> tuple[Tensors, Tensors]:
    """The weights of both models after batches of the global and the personal one."""
    shared, mine = fed.double(model), fed.double(own)
    received = fed.double(model).eval()
    for batch, other in pairs:
        Z, z = outputs(shared, batch), outputs(mine, other)
        P = [out.p for out in (outputs(received, batch) if anchor == "received" else Z)]
        terms = [distance(one.p, goal) for one in z for goal in P]  # four of them
        loss = symmetric(*z) + lam / 4 * torch.stack(terms).sum()
        common = symmetric(*Z)
        descend(shared, common, fed.parts.local.lr)
        descend(mine, loss, fed.parts.local.lr)
    return shared.state_dict(), mine.state_dict()


@pytest.mark.parametrize("fields", VARIANTS[1:3], ids=str)
def test_the_global_model_is_that_of_fedavg_bit_for_bit(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    assert_global_path(tmp_path, "per_ssfl", lam=1.0, **fields)


def test_without_a_pull_it_is_bilevel_and_every_client_is_on_its_own(tmp_path: Path) -> None:
    """lambda = 0: the global path of FedAvg, personal models of local SimSiam, bit for bit."""
    fed = assert_global_path(tmp_path, "per_ssfl", lam=0.0)
    assert_purely_local(fed)
    other = finished(tmp_path / "bilevel", "bilevel_ssfl", lam=0.0)
    mine, theirs = fed.files(), other.files()
    assert set(mine) == set(theirs)
    assert all(same(mine[name], theirs[name]) for name in mine)


def test_the_pull_is_the_mean_distance_of_four_pairs() -> None:
    tensors = [torch.randn(5, 4, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    p1, p2, P1, P2 = tensors
    total = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        for p in (p1, p2):
            for P in (P1, P2):
                total = total - cosine(p[i], P[i]) / 20
    found = pull(*tensors)
    torch.testing.assert_close(found, total)
    slopes = torch.autograd.grad(found, tensors, allow_unused=True)
    assert slopes[2] is None and slopes[3] is None  # no hat stands over P, yet it is a constant
    torch.testing.assert_close(slopes[:2], torch.autograd.grad(total, (p1, p2)))


@pytest.mark.parametrize("lam", [0.1, 1.0])
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_both_models_take_the_steps_by_hand(
    fields: dict[str, Any], lam: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theta_k goes on from step to step; P is that of the same pass, before the step."""
    tables = {"local": {"steps": 3}} if lam == 1.0 else {}
    fed = TwoViews(tmp_path, "per_ssfl", tables=tables, lam=lam, **fields)
    model, own, place = fed.moved(), fed.moved(seed=1), fed.place(3)
    spy = Spy(fed, monkeypatch)
    done = fed.train(2, place, model, Bundle({"personal": own}))
    monkeypatch.undo()
    first = spy.seen[0][0]
    pairs = list(
        zip(
            [batch for net, batch in spy.seen if net is first],
            [batch for net, batch in spy.seen if net is not first],
            strict=True,
        )
    )
    assert len(pairs) == 3
    for (batch, other), train in zip(pairs, fed.batches(2, place), strict=True):
        assert equal(batch, train)  # the global model trains as in FedAvg
        assert torch.equal(batch.index, other.index)  # on the same samples, ...
        assert equal(batch, other) != fields.get("independent_views", False)  # ... other views
        if "independent_views" in fields:
            assert not any(map(torch.equal, batch.views, other.views))
    expected, personal = by_hand(fed, pairs, model, own, lam, fields.get("anchor", "current"))
    assert done.state is not None
    assert_near(done.up["model"], expected, atol=1e-5)
    assert_near(done.state["personal"], personal, atol=1e-5)
    assert set(done.up.tensors) == {"model"} and set(done.state.tensors) == {"personal"}
    alone = by_hand(fed, pairs, model, own, 0.0)[1]["backbone.layers.1.weight"]
    assert (personal["backbone.layers.1.weight"] - alone).abs().max() > 1e-4


def test_the_two_anchors_agree_on_no_step_but_in_their_goal(tmp_path: Path) -> None:
    """One in training mode and moving, the other in eval mode and as received."""
    found = []
    for anchor in ("current", "received"):
        fed = TwoViews(tmp_path, "per_ssfl", tables={"local": {"steps": 1}}, lam=1.0, anchor=anchor)
        own = Bundle({"personal": fed.moved(seed=1)})
        found.append(fed.train(2, fed.place(3), fed.moved(), own))
    assert same(found[0].up["model"], found[1].up["model"])
    states = [one.state["personal"] for one in found if one.state is not None]
    assert not same(states[0], states[1], "backbone")


def test_the_settings_by_default(tmp_path: Path) -> None:
    table = TwoViews(tmp_path, "per_ssfl").config.tables["method"]
    assert (table["lam"], table["anchor"], table["independent_views"]) == (0.1, "current", False)


def test_a_client_starts_from_the_initial_model(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, "per_ssfl", lam=1.0)
    model, place = fed.moved(), fed.place(4)
    initial = Bundle({"personal": fed.start()["model"]})
    found = [fed.train(0, place, model, state).state for state in (None, initial)]
    assert found[0] is not None and found[1] is not None
    assert same(found[0]["personal"], found[1]["personal"])
    assert same(fed.personal(0, place, model), initial["personal"])
    assert same(fed.personal(0, place, model, found[0]), found[0]["personal"])


def test_own_models_stay_with_their_clients(tmp_path: Path) -> None:
    assert_own_models_stay(tmp_path, "per_ssfl")


def test_the_record_shows_both_models(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, "per_ssfl", lam=0.5)
    metrics = fed.train(0, fed.place(0), fed.moved()).metrics
    assert metrics["personal_loss"] == pytest.approx(
        metrics["personal_loss_self"] + metrics["personal_loss_pull"], rel=1e-5
    )
    assert -0.5 <= metrics["personal_loss_pull"] <= 0.5
    assert metrics["steps"] == metrics["personal_steps"]


@pytest.mark.parametrize("objective", ["supervised", "simclr", "byol", "swav"])
def test_other_objectives_are_refused(objective: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, "per_ssfl", objective)
