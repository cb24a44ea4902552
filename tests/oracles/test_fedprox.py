"""FedProx in closed form on a quadratic, and its pull on heads alone step by step."""

from pathlib import Path

import numpy as np
import pytest
import quadratic
import torch
from federation import UNCHANGED, assert_near, same
from torch import Tensor
from two_views import TwoViews, cosine, shift, slopes, windows

from coterie.core.batch import Batch
from coterie.nets.heads import Network

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


def nt_xent(net: Network, batch: Batch) -> Tensor:
    """Over the 2B views, view by view."""
    one, two = (net(view.double()).z for view in batch.views)
    views, size = [*one, *two], len(one)
    terms = []
    for i, z in enumerate(views):
        powers = [(cosine(z, other) / 0.5).exp() for k, other in enumerate(views) if k != i]
        partner = (cosine(z, views[(i + size) % (2 * size)]) / 0.5).exp()
        terms.append(-(partner / torch.stack(powers).sum()).log())
    return torch.stack(terms).mean()


@pytest.mark.parametrize("part", ["all", "head"])
def test_every_step_is_pulled_towards_the_received_model(part: str, tmp_path: Path) -> None:
    mu, local = 0.8, {"batch_size": 4, "accumulate": 2, "weight_decay": 1e-2}
    tables = {"local": local, "net": {"norm": "none"}}
    fed = TwoViews(tmp_path, "fedprox", "simclr", tables, mu=mu, part=part)
    model, place, client = fed.moved(), fed.place(1), 2
    net = fed.double(model)
    for window in windows(fed.batches(client, place), 2):
        step = slopes(net, nt_xent, window)
        for name, weight in net.named_parameters():
            if part == "all" or name.startswith("projector."):
                step[name] += mu * (weight.detach() - model[name])
            step[name] += 1e-2 * weight.detach()  # the optimiser's decay
        shift(net, step, fed.parts.local.rate(place))
    done = fed.train(client, place, model)
    assert_near(done.up["model"], net.state_dict(), atol=3e-5)
    gaps = [(net.state_dict()[n] - model[n]).double() for n, _ in net.named_parameters()]
    drift = float(sum(gap.square().sum() for gap in gaps)) ** 0.5
    assert done.metrics["drift"] == pytest.approx(drift, rel=1e-3)


@pytest.mark.parametrize(
    ("objective", "heads"),
    [
        ("simclr", {"projector"}),
        ("swav", {"projector", "prototypes"}),
        ("simsiam", {"projector", "predictor"}),
        ("supervised", {"projector", "classifier"}),
    ],
)
def test_the_head_is_all_but_the_backbone(objective: str, heads: set[str], tmp_path: Path) -> None:
    """Nothing is pulled in a first step; what the pull changes in a second one is the head."""
    tables = {"local": {"steps": 2, "batch_size": 8}}
    if objective == "supervised":
        tables["data"] = {"augment": UNCHANGED}
    free = TwoViews(tmp_path, "fedprox", objective, tables, mu=0.0, part="head")
    held = TwoViews(tmp_path, "fedprox", objective, tables, mu=1.0, part="head")
    model, place = free.start()["model"], free.place(0)
    one, other = (fed.train(0, place, model).up["model"] for fed in (free, held))
    trained = [n for n, _ in free.nets["model"].named_parameters()]
    moved = {n.split(".")[0] for n in trained if not torch.allclose(one[n], other[n], atol=1e-6)}
    assert moved == heads


def test_a_head_without_a_weight_is_fedavg(tmp_path: Path) -> None:
    plain = TwoViews(tmp_path, "fedavg", "swav")
    free = TwoViews(tmp_path, "fedprox", "swav", mu=0.0, part="head")
    model, place = plain.moved(), plain.place(0)
    found = (fed.train(0, place, model).up["model"] for fed in (plain, free))
    assert same(*found)
