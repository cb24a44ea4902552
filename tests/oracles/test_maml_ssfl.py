"""MAML-SSFL against steps written out by hand, and against exact curvature."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import assert_near, same
from test_simclr import contrast
from torch import Tensor, nn
from two_views import (
    ROUGH,
    SIZES,
    Slopes,
    Spy,
    TwoViews,
    assert_refused,
    equal,
    finished,
    shift,
    simsiam,
    slopes,
    windows,
)

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.nets.heads import Network

RATE = 0.1


def maml(folder: Path, tables: dict[str, Any] | None = None, **fields: Any) -> TwoViews:
    return TwoViews(folder, "maml_ssfl", tables=tables, **fields)


def seen_by(
    fed: TwoViews, monkeypatch: pytest.MonkeyPatch, client: int, step: int, model: Tensors
) -> tuple[Tensors, list[Batch], list[Batch]]:
    """What a client sends, the batches that FedAvg trains on, and all others that it drew."""
    spy, place = Spy(fed, monkeypatch), fed.place(step)
    done = fed.train(client, place, model)
    monkeypatch.undo()
    assert set(done.up.tensors) == {"model"} and done.state is None
    outer = list(fed.batches(client, place))
    others = [one for one in spy.batches() if not any(equal(one, batch) for batch in outer)]
    assert len(spy.seen) == len(others) + len(outer)
    return done.up["model"], outer, others


def by_hand(
    fed: TwoViews,
    model: Tensors,
    outer: list[Batch],
    inner: Iterator[Batch],
    rate: float,
    accumulate: int = 1,
    momentum: float = 0.0,
) -> Tensors:
    """First order: theta' = Theta - a grad L(Theta; B1), Theta = Theta - beta grad L(theta'; B2).

    Statistics of norms follow the pass over B2 alone; momentum is that of grad L(theta'; B2).
    """
    net, velocity = fed.double(model), Slopes()
    for window in windows(iter(outer), accumulate):
        spare = copy.deepcopy(net)
        step = slopes(spare, simsiam, [next(inner) for _ in window])
        shift(net, step, rate)
        found = slopes(net, simsiam, window)
        shift(net, step, -rate)
        velocity = {n: momentum * velocity.get(n, 0.0) + slope for n, slope in found.items()}
        shift(net, velocity, RATE)
    assert next(inner, None) is None
    return net.state_dict()


@pytest.mark.parametrize("objective", ["simsiam", "simclr"])
def test_without_an_inner_step_it_is_fedavg_bit_for_bit(objective: str, tmp_path: Path) -> None:
    plain = TwoViews(tmp_path / "fedavg", "fedavg", objective, ROUGH).digests()
    fed = TwoViews(tmp_path / "run", "maml_ssfl", objective, ROUGH, inner_lr=0.0)
    assert fed.digests() == plain


@pytest.mark.parametrize(
    ("local", "fields", "rate"),
    [
        ({}, {}, RATE),  # by default a is local.lr
        ({}, {"inner_lr": 0.5}, 0.5),
        ({"accumulate": 2}, {"inner_lr": 0.5}, 0.5),
        ({"momentum": 0.9}, {"inner_lr": 0.5}, 0.5),
    ],
)
def test_the_steps_of_first_order(
    local: dict[str, Any],
    fields: dict[str, Any],
    rate: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = maml(tmp_path, {"local": local}, **fields)
    model = fed.moved()
    found, outer, inner = seen_by(fed, monkeypatch, 2, 3, model)
    assert len(inner) == len(outer)  # B1 and B2 are drawn apart
    assert [one.index.tolist() for one in inner] != [one.index.tolist() for one in outer]
    settings = local.get("accumulate", 1), local.get("momentum", 0.0)
    expected = by_hand(fed, model, outer, iter(inner), rate, *settings)
    assert_near(found, expected, atol=1e-5)
    plain = TwoViews(tmp_path, tables={"local": local}).train(2, fed.place(3), model)
    gap = plain.up["model"]["projector.0.weight"] - found["projector.0.weight"]
    assert gap.abs().max() > 1e-4  # or the comparison above would not mean much


@pytest.mark.parametrize(("fields", "inner_rate"), [({}, RATE), ({"inner_lr": 0.5}, 0.5)])
def test_the_inner_rate_does_not_follow_the_schedule(
    fields: dict[str, Any], inner_rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """theta' is a step at a, which no round shrinks; beta is the round's rate."""
    fed = maml(tmp_path, {"local": {"schedule": "cosine", "steps": 1}}, **fields)
    model, rate = fed.moved(), fed.parts.local.rate(fed.place(6))
    assert 0 < rate < RATE
    found, outer, inner = seen_by(fed, monkeypatch, 2, 6, model)
    net = fed.double(model)
    shift(net, slopes(copy.deepcopy(net), simsiam, inner), inner_rate)
    step = slopes(net, simsiam, outer)
    expected = {n: model[n].double() - rate * slope for n, slope in step.items()}
    assert_near({name: found[name] for name in expected}, expected, atol=1e-5)


@pytest.mark.parametrize("order", ["first", "hessian_free"])
def test_statistics_of_norms_move_in_the_outer_pass_alone(order: str, tmp_path: Path) -> None:
    """Two views of every batch that FedAvg trains on, and no more."""
    fed = maml(tmp_path, order=order)
    model, place = fed.moved(), fed.place(3)
    found = fed.train(2, place, model).up["model"]
    passes = 2 * len(list(fed.batches(2, place)))
    counters = [name for name in found if name.endswith("num_batches_tracked")]
    assert len(counters) > 3
    assert all(int(found[name] - model[name]) == passes for name in counters)


@pytest.mark.parametrize("local", [{}, {"accumulate": 2}])
def test_the_hessian_free_steps(
    local: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theta - beta [g - a (grad L(Theta + d g; B3) - grad L(Theta - d g; B3)) / (2 d)]."""
    delta, rate = 0.05, 0.1
    fed = maml(tmp_path, {"local": local}, order="hessian_free", delta=delta, inner_lr=rate)
    model = fed.moved()
    found, outer, others = seen_by(fed, monkeypatch, 2, 3, model)
    net, drawn = fed.double(model), iter(others)
    for window in windows(iter(outer), local.get("accumulate", 1)):
        inner, third, again = ([next(drawn) for _ in window] for _ in range(3))
        assert all(map(equal, third, again))  # both sides on one B3, which is not B1
        assert not any(map(equal, inner, third))
        step = slopes(copy.deepcopy(net), simsiam, inner)
        shift(net, step, rate)
        slope = slopes(net, simsiam, window)
        shift(net, step, -rate)
        sides = []
        for sign in (1.0, -1.0):
            side = copy.deepcopy(net)
            shift(side, slope, -sign * delta)
            sides.append(slopes(side, simsiam, third))
        bends = {n: (sides[0][n] - sides[1][n]) / (2 * delta) for n in slope}
        shift(net, {n: slope[n] - rate * bends[n] for n in slope}, RATE)
    assert next(drawn, None) is None
    assert_near(found, net.state_dict(), atol=2e-5)


def curvature(
    net: Network, loss: Callable[[Network, Batch], Tensor], batch: Batch, along: Slopes
) -> Slopes:
    """The exact product of the Hessian with a vector."""
    weights = dict(net.named_parameters())
    first = torch.autograd.grad(loss(net, batch), list(weights.values()), create_graph=True)
    pairs = zip(first, along.values(), strict=True)
    product = torch.stack([(slope * vector).sum() for slope, vector in pairs]).sum()
    return dict(zip(weights, torch.autograd.grad(product, list(weights.values())), strict=True))


def test_the_difference_of_gradients_is_the_exact_curvature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SimCLR, whose loss has no constants, and without the kinks of ReLU: g - a H g."""
    fed = TwoViews(
        tmp_path,
        "maml_ssfl",
        "simclr",
        {"local": {"steps": 1, "batch_size": 16}},
        **{"order": "hessian_free", "inner_lr": RATE},
    )
    for module in list(fed.nets["model"].modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.ReLU):
                setattr(module, name, nn.Tanh())
    model = fed.moved(0.01)
    found, (outer,), (inner, third, _) = seen_by(fed, monkeypatch, 2, 3, model)
    net = fed.double(model)
    moved = copy.deepcopy(net)
    shift(moved, slopes(copy.deepcopy(net), contrast, [inner]), RATE)
    slope = slopes(moved, contrast, [outer])
    expected = curvature(net, contrast, third, slope)
    bends = {n: (slope[n] - (model[n].double() - found[n]) / RATE) / RATE for n in slope}
    gap, size = (
        torch.stack([part.square().sum() for part in parts]).sum().sqrt().item()
        for parts in ([bends[n] - expected[n] for n in slope], list(expected.values()))
    )
    assert size > 1  # there is some
    assert gap < 0.01 * size


@pytest.mark.parametrize("inner_lr", [None, 0.5])
def test_it_is_tested_after_a_step_of_the_inner_rate(
    inner_lr: float | None, tmp_path: Path
) -> None:
    """As in LA-SSFL, in every round of a schedule: what training prepares for."""
    tables = {"local": {"schedule": "cosine"}}
    rates = {} if inner_lr is None else {"inner_lr": inner_lr}
    fed = maml(tmp_path, tables, **rates)
    other = TwoViews(tmp_path, "la_ssfl", tables=tables, lr=inner_lr or RATE)
    model, place = fed.moved(), fed.place(7)
    assert same(fed.personal(1, place, model), other.personal(1, place, model))


def test_an_inner_rate_of_zero_is_tested_without_a_step(tmp_path: Path) -> None:
    fed = maml(tmp_path, inner_lr=0.0)
    model = fed.moved()
    found = fed.personal(1, fed.place(3), model)
    weights = {name for name, _ in fed.nets["model"].named_parameters()}
    assert same({n: found[n] for n in weights}, {n: model[n] for n in weights})


def test_a_run_leaves_adapted_models(tmp_path: Path) -> None:
    fed = finished(tmp_path / "run", "maml_ssfl")
    server, files = fed.servers()[-1]["model"], fed.files()
    assert set(files) == {f"site-{client}.safetensors" for client in range(len(SIZES))}
    place = fed.place(2, 3)
    for client in range(len(SIZES)):
        expected = fed.personal(client, place, server)
        assert same(files[f"site-{client}.safetensors"], expected)
        assert not same(expected, server, "backbone")
    assert not (fed.folder / "clients").exists()  # nothing is remembered


@pytest.mark.parametrize("objective", ["supervised", "byol"])
def test_other_objectives_are_refused(objective: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, "maml_ssfl", objective)
