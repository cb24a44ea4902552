"""The local loop: accumulation, hook, clipping, freezing, and what is reported."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_networks import tiny_network
from torch import Tensor, nn

from coterie.core.batch import Batch
from coterie.core.errors import Diverged
from coterie.core.settings import Local
from coterie.core.task import Round
from coterie.kit.context import ClientContext
from coterie.kit.local import Stepper, all_finite, freeze_all_but, train
from coterie.kit.networks import Nets
from coterie.kit.objective import Loss, Objective
from coterie.nets.build import Backbone
from coterie.nets.heads import Network

LR = 0.25


class SquaredError(Objective):
    """Linear regression on the classifier's first output; remembers its progress calls."""

    def __init__(self) -> None:
        self.progress: list[float] = []

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        raise NotImplementedError

    def loss(self, net: Network, batch: Batch) -> Loss:
        error = (net(batch.x).logits.squeeze(1) - batch.y) ** 2
        return Loss(error.mean(), {"fit": error.mean() / 2})

    def after_step(self, net: Network, progress: float) -> None:
        self.progress.append(progress)


class ListedShard:
    """A shard whose batches are given."""

    classes = 2

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches
        self.labels = torch.cat([batch.y for batch in batches])

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, local: Local, views: tuple[str, ...], draw: Callable[[str], np.random.Generator]
    ) -> Iterator[Batch]:
        return iter(self._batches)

    def sweep(self, batch_size: int = 256, test: bool = False) -> Iterator[Batch]:
        return iter(self._batches)


def linear() -> Network:
    net = Network(nn.Identity(), classifier=nn.Linear(2, 1))
    with torch.no_grad():
        net.classifier.weight.copy_(torch.tensor([[0.5, -1.0]]))
        net.classifier.bias.fill_(0.25)
    return net.double()


def samples(count: int = 8) -> tuple[Tensor, Tensor]:
    x = torch.arange(2.0 * count, dtype=torch.float64).reshape(count, 2).sin()
    return x, x[:, 0] - 2 * x[:, 1] + x[:, 0] ** 2


def cut(sizes: list[int]) -> list[Batch]:
    x, y = samples(sum(sizes))
    stops = np.cumsum(sizes).tolist()
    starts = [0, *stops[:-1]]
    return [
        Batch((x[a:b],), y[a:b], torch.arange(a, b), 0, b == stops[-1], a / stops[-1])
        for a, b in zip(starts, stops, strict=True)
    ]


def context(sizes: list[int], net: Network | None = None, **local: Any) -> ClientContext:
    settings = {"lr": LR, "momentum": 0.0, "weight_decay": 0.0} | local
    return ClientContext(
        id=3,
        round=Round(4, 10, "train", 4, 10, 5, seed=1),
        own=None,
        data=ListedShard(cut(sizes)),
        objective=SquaredError(),
        local=Local(**settings),
        nets=Nets({"model": net or linear()}),
        draw_fresh=lambda key: {},
        kept={},
        folder=Path("unused"),
    )


def trained(sizes: list[int], **local: Any) -> tuple[Tensor, ClientContext, int]:
    """All weights after local training, as one vector."""
    ctx = context(sizes, **local)
    net = ctx.net(linear().state_dict())
    steps = train(ctx, net, ctx.objective.loss)
    return torch.cat([p.detach().flatten() for p in net.parameters()]), ctx, steps


def gradient(x: Tensor, y: Tensor) -> np.ndarray:
    """Of the mean squared error at the initial weights, by hand."""
    inputs = np.column_stack([x.numpy(), np.ones(len(x))])
    residual = inputs @ np.array([0.5, -1.0, 0.25]) - y.numpy()
    return 2 * inputs.T @ residual / len(x)


def test_one_step_is_the_formula() -> None:
    found, ctx, steps = trained([8])
    expected = np.array([0.5, -1.0, 0.25]) - LR * gradient(*samples())
    assert np.allclose(found.numpy(), expected, rtol=0, atol=1e-14)
    assert steps == 1
    assert ctx.metrics["steps"] == 1.0


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lars"])
def test_accumulation_equals_the_big_batch(optimizer: str) -> None:
    whole, _, _ = trained([8], optimizer=optimizer)
    parts, _, steps = trained([2, 2, 2, 2], optimizer=optimizer, accumulate=4)
    assert torch.allclose(parts, whole, rtol=0, atol=1e-12)
    assert steps == 1


def test_a_remainder_is_a_whole_step_of_its_own() -> None:
    apart, _, _ = trained([4, 2])
    together, _, steps = trained([2, 2, 2], accumulate=2)
    assert torch.allclose(together, apart, rtol=0, atol=1e-12)
    assert steps == 2


def test_accumulation_longer_than_an_epoch() -> None:
    whole, _, _ = trained([6])
    found, _, steps = trained([2, 2, 2], accumulate=8)
    assert torch.allclose(found, whole, rtol=0, atol=1e-12)
    assert steps == 1


def test_a_call_says_whether_it_completed_a_step() -> None:
    ctx = context([2, 2, 2], accumulate=2)
    net = ctx.net(linear().state_dict())
    stepper = Stepper(ctx, net)
    done = [stepper(ctx.objective.loss(net, batch), batch) for batch in ctx.batches()]
    assert done == [False, True, True]
    assert stepper.steps == 2
    assert all(parameter.grad is None for parameter in net.parameters())


def test_clipping_bounds_the_norm_of_a_step() -> None:
    start = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
    steep = gradient(*samples())
    found, _, _ = trained([8], clip=0.125)
    assert np.linalg.norm(steep) > 0.125
    assert (found - start).norm().item() == pytest.approx(LR * 0.125, rel=1e-4)
    loose, _, _ = trained([8], clip=1e6)
    assert torch.equal(loose, trained([8])[0])


def test_the_hook_sees_complete_gradients_before_they_are_clipped() -> None:
    ctx = context([4, 4], accumulate=2, clip=0.125)
    seen: list[np.ndarray] = []

    def hook(net: Network) -> None:
        seen.append(torch.cat([p.grad.flatten() for p in net.parameters()]).numpy().copy())
        for parameter in net.parameters():
            parameter.grad.fill_(100.0)

    net = ctx.net(linear().state_dict())
    train(ctx, net, ctx.objective.loss, hook=hook)
    assert len(seen) == 1
    assert np.allclose(seen[0], gradient(*samples()), rtol=0, atol=1e-12)
    moved = net.classifier.bias.item() - 0.25
    assert moved == pytest.approx(-LR * 0.125 / math.sqrt(3), rel=1e-4)


def test_only_freezes_the_other_parts_and_sets_them_to_eval_mode() -> None:
    ctx = context([8], net=tiny_network())
    net = ctx.net(tiny_network().state_dict())
    Stepper(ctx, net, only=("classifier",))
    assert net.classifier.training
    assert not net.backbone.training
    assert not net.backbone[1].training
    trained_names = {name for name, p in net.named_parameters() if p.requires_grad}
    assert trained_names == {"classifier.weight", "classifier.bias"}


def test_frozen_parts_do_not_move() -> None:
    ctx = context([8], net=tiny_network())
    net = ctx.net(tiny_network().state_dict())
    stepper = Stepper(ctx, net, only=["classifier"], lr=0.5)
    batch = Batch((torch.ones(4, 3),), torch.zeros(4), torch.arange(4))
    stepper(Loss((net(batch.x).logits ** 2).mean()), batch)
    before, after = tiny_network().state_dict(), net.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"classifier.weight", "classifier.bias"}


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no 'head'; it has: \['backbone', 'classifier'"):
        freeze_all_but(tiny_network(), ("classifier", "head"))


def test_nothing_named_freezes_nothing() -> None:
    net = tiny_network().train()
    freeze_all_but(net, ())
    assert net.backbone.training
    assert net.backbone[0].weight.requires_grad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_client(value: float) -> None:
    ctx = context([2, 2])
    net = ctx.net(linear().state_dict())
    stepper = Stepper(ctx, net)
    good, bad = ctx.batches()
    stepper(ctx.objective.loss(net, good), good)
    before = net.classifier.weight.detach().clone()
    with pytest.raises(Diverged, match=f"the loss is {value} after 1 steps"):
        stepper(Loss(ctx.objective.loss(net, bad).total * value), bad)
    assert torch.equal(net.classifier.weight, before)


def test_metrics_are_means_over_samples() -> None:
    ctx = context([6, 2], lr=1e-12)
    net = ctx.net(linear().state_dict())
    train(ctx, net, ctx.objective.loss)
    x, y = samples()
    expected = ((linear()(x).logits.squeeze(1) - y) ** 2).mean().item()
    assert ctx.metrics == {
        "loss": pytest.approx(expected, rel=1e-9),
        "loss_fit": pytest.approx(expected / 2, rel=1e-9),
        "steps": 2.0,
    }


def test_named_steppers_report_apart() -> None:
    ctx = context([8])
    net = ctx.net(linear().state_dict())
    for name in ("own", "shared"):
        stepper = Stepper(ctx, net, name=name)
        for batch in ctx.batches():
            stepper(ctx.objective.loss(net, batch), batch)
        stepper.report()
    assert {f"{name}_{what}" for name in ("own", "shared") for what in ("loss", "steps")} <= set(
        ctx.metrics
    )


def test_a_stepper_without_batches_reports_no_loss() -> None:
    ctx = context([8])
    Stepper(ctx, ctx.net(linear().state_dict())).report()
    assert ctx.metrics == {"steps": 0.0}


def test_the_rate_is_that_of_the_round_unless_given() -> None:
    constant, _, _ = trained([8], lr=LR * 0.5 * (1 + math.cos(math.pi * 0.4)))
    cosine, _, _ = trained([8], schedule="cosine")
    assert torch.equal(cosine, constant)
    ctx = context([8], schedule="cosine")
    net = ctx.net(linear().state_dict())
    stepper = Stepper(ctx, net, lr=LR)
    for batch in ctx.batches():
        stepper(ctx.objective.loss(net, batch), batch)
    assert torch.equal(net.classifier.bias, trained([8])[0][2:])


def test_progress_runs_over_the_stage() -> None:
    _, ctx, _ = trained([2, 2, 4])
    assert ctx.objective.progress == pytest.approx([0.4, 0.425, 0.45])


def test_all_finite() -> None:
    assert all_finite([torch.ones(2), torch.tensor([2**40]), torch.empty(0)])
    assert not all_finite([torch.ones(2), torch.tensor([1.0, math.nan])])
    assert not all_finite([torch.tensor(math.inf).half()])
