"""BYOL with FedAvg against training and following written out by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from federation import assert_near, same
from torch import Tensor
from two_views import (
    ROUGH,
    SIZES,
    TwoViews,
    assert_no_label_is_used,
    count,
    distance,
    layers,
    paper_network,
    shift,
    slopes,
    windows,
)

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.engine.client_states import StateStore
from coterie.experiment.config import load
from coterie.nets.heads import Network

MOMENTUM = 0.7  # of the small networks
PLACE = "model:local"  # of what a site keeps


def byol(folder: Path, target: str = "local", **tables: dict[str, Any]) -> TwoViews:
    return TwoViews(folder, objective="byol", tables={**tables, "objective": {"target": target}})


def target_of(weights: Tensors) -> Tensors:
    return {n.removeprefix("target."): t for n, t in weights.items() if n.startswith("target.")}


def as_target(weights: Tensors) -> Tensors:
    """A target with the values of a network's backbone and projector."""
    parts = ("backbone.", "projector.")
    return {f"target.{n}": t for n, t in weights.items() if n.startswith(parts)}


def by_hand(fed: TwoViews, client: int, step: int, model: Tensors, start: Tensors) -> Tensors:
    """Plain SGD on D(q1, sg z'2)/2 + D(q2, sg z'1)/2; the target follows after every step."""
    net, place = fed.double({**model, **start}), fed.place(step)

    def loss(net: Network, batch: Batch) -> Tensor:
        views = [view.double() for view in batch.views]
        one, two = (net(view) for view in views)
        with torch.no_grad():
            goal1, goal2 = (net.get_submodule("target")(view).z for view in views)
        return 0.5 * distance(one.p, goal2) + 0.5 * distance(two.p, goal1)

    for window in windows(fed.batches(client, place), fed.parts.local.accumulate):
        shift(net, slopes(net, loss, window), fed.parts.local.rate(place))
        with torch.no_grad():
            online = dict(net.named_parameters())
            for name, slow in online.items():
                if name.startswith("target."):
                    fast = online[name.removeprefix("target.")]
                    slow.copy_(MOMENTUM * slow + (1 - MOMENTUM) * fast)
    return net.state_dict()


def test_the_heads_and_parameters_of_the_specification() -> None:
    """512-1024-256 and 256-1024-256 with a norm inside; about 12.5 M parameters are sent."""
    net = paper_network("byol")
    for head, width in ((net.projector, 512), (net.predictor, 256)):
        assert layers(head) == [("fc", width, 1024), ("bn", 1024), ("relu",), ("fc", 1024, 256)]
    assert round(count(net) / 1e6, 1) == 12.5
    target = net.get_submodule("target")
    assert {name.split(".")[0] for name, _ in target.named_parameters()} == {
        "backbone",
        "projector",
    }
    assert not any(parameter.requires_grad for parameter in target.parameters())
    weights = net.state_dict()
    assert same(target_of(weights), target_of(as_target(weights)))  # it starts as a copy


def test_the_shipped_setting() -> None:
    config = load("cifar10/byol", {"evaluate.with": [], "evaluate.metric": "accuracy"})
    found = config.tables["objective"]
    assert (found["momentum"], found["target"]) == (0.99, "local")


@pytest.mark.parametrize("target", ["local", "reset", "aggregate"])
@pytest.mark.parametrize(
    "local", [{}, {"accumulate": 2, "epochs": 2}, {"batch_size": 6, "steps": 3}]
)
def test_local_training_and_following_are_those_by_hand(
    local: dict[str, Any], target: str, tmp_path: Path
) -> None:
    """The target follows after optimiser steps, not after the batches that they accumulate."""
    fed = byol(tmp_path, target, local=local)
    model = fed.moved()  # with target = "aggregate" the target has moved too
    start = target_of(model) if target == "aggregate" else as_target(model)
    if target == "aggregate":
        start = {f"target.{name}": tensor for name, tensor in start.items()}
    expected = by_hand(fed, 2, 3, model, start)
    done = fed.train(2, fed.place(3), model)
    found = {**done.up["model"], **done.keeps.get(PLACE, {})}
    assert_near(found, expected, atol=1e-5)
    gaps = [float((found[n] - t).abs().max()) for n, t in start.items() if n.endswith("weight")]
    assert max(gaps) > 1e-3  # or the comparison above would not mean much


@pytest.mark.parametrize("target", ["local", "reset"])
def test_the_target_is_never_sent(target: str, tmp_path: Path) -> None:
    fed = byol(tmp_path, target)
    model = fed.start()["model"]
    assert not target_of(model)
    done = fed.train(0, fed.place(0), model)
    assert set(done.up.tensors) == {"model"}
    assert set(done.up["model"]) == set(model)
    assert {name.split(".")[0] for name in model} == {"backbone", "projector", "predictor"}


def test_an_averaged_target_is_sent_and_averaged_by_samples(tmp_path: Path) -> None:
    fed = byol(tmp_path, "aggregate")
    server, place = fed.start(), fed.place(0)
    names = set(fed.nets["model"].state_dict())
    assert set(server["model"]) == names
    done = {k: fed.train(k, place, server["model"]) for k in range(len(SIZES))}
    assert all(set(one.up["model"]) == names and not one.keeps for one in done.values())
    after = fed.collect(server, place, {k: (SIZES[k], one.up) for k, one in done.items()})
    for name, tensor in target_of(after["model"]).items():
        if tensor.is_floating_point():
            parts = [target_of(one.up["model"])[name] for one in done.values()]
            mean = sum(n / sum(SIZES) * part for n, part in zip(SIZES, parts, strict=True))
            torch.testing.assert_close(tensor, mean, rtol=1e-5, atol=1e-6)


def test_only_an_averaged_target_costs_bytes(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 1}}
    costs = {
        target: byol(tmp_path / target, target, **tables).run().history[0]
        for target in ("local", "reset", "aggregate")
    }
    assert costs["local"].bytes_up == costs["reset"].bytes_up
    net = byol(tmp_path, "local").nets["model"]
    size = sum(t.nbytes for t in target_of(net.state_dict()).values())
    for way in ("bytes_up", "bytes_down"):
        more = getattr(costs["aggregate"], way) - getattr(costs["local"], way)
        assert more >= len(SIZES) * size


def test_a_client_that_comes_late_takes_the_model_that_it_receives(tmp_path: Path) -> None:
    """At first participation the target is the global model, in whatever round that is."""
    fed = byol(tmp_path, "local")
    model, place = fed.moved(seed=5), fed.place(6)
    first = fed.train(1, place, model)
    other = byol(tmp_path, "reset").train(1, place, model)
    assert same(first.up["model"], other.up["model"])
    assert same(first.keeps[PLACE], other.keeps[PLACE])


@pytest.mark.parametrize("target", ["local", "reset"])
def test_a_target_goes_on_or_starts_again(target: str, tmp_path: Path) -> None:
    fed = byol(tmp_path, target)
    model = fed.moved()
    before = fed.train(2, fed.place(0), fed.start()["model"]).keeps
    start = as_target(model) if target == "reset" else before[PLACE]
    expected = by_hand(fed, 2, 3, model, start)
    done = fed.train(2, fed.place(3), model, kept=before)
    assert_near({**done.up["model"], **done.keeps[PLACE]}, expected, atol=1e-5)
    alone = fed.train(2, fed.place(3), model)
    assert same(done.up["model"], alone.up["model"]) == (target == "reset")


@pytest.mark.parametrize("target", ["local", "reset", "aggregate"])
def test_the_whole_run_is_the_chain_of_its_rounds(target: str, tmp_path: Path) -> None:
    """Sites keep the local target from round to round; nothing else does."""
    fed = byol(tmp_path / "run", target, **ROUGH)
    digests = fed.digests()
    server, kept = fed.start(), {k: {} for k in range(len(SIZES))}
    for step, digest in enumerate(digests):
        place, uploads = fed.place(step, len(digests)), {}
        for client, size in enumerate(SIZES):
            done = fed.train(client, place, server["model"], kept=kept[client])
            uploads[client] = (size, done.up)
            kept[client] = done.keeps
        server = fed.collect(server, place, uploads)
        assert server.digest() == digest
    saved = StateStore(fed.folder / "clients").load(0, below=99)
    if target == "aggregate":
        assert saved is None
    else:
        assert saved is not None and same(saved[f"site:{PLACE}"], kept[0][PLACE])


def test_a_client_that_is_not_sampled_keeps_its_target(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 6}, "cohort": {"fraction": 0.34}}
    fed = byol(tmp_path / "run", **tables)
    cohorts = [event.cohort for event in fed.run().history]
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    for client in range(len(SIZES)):
        written = {path.name[:6] for path in (fed.folder / f"clients/{client}").glob("*")}
        joined = {f"{step:06d}" for step, cohort in enumerate(cohorts) if client in cohort}
        assert written <= joined and (not joined or max(written) == max(joined))


def test_no_gradient_reaches_the_target(tmp_path: Path) -> None:
    fed = byol(tmp_path, "aggregate")
    net = fed.nets.net("model", "local", fed.moved(), {})
    batch = next(iter(fed.batches(1, fed.place(1))))
    fed.parts.objective.loss(net, batch).total.backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("target."), name


def test_no_label_is_used(tmp_path: Path) -> None:
    assert_no_label_is_used(tmp_path, "fedavg", "byol")
