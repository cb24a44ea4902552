"""MAML-SSFL: a global model that adapts well in one step (He et al., SSFL, 2021).

The objective is min_Theta sum_k (n_k / n) L(Theta - a grad L(Theta; D_k); D_k). A local iteration
draws independent batches B1, B2 (and B3):

    theta' = Theta_k - a grad L(Theta_k; B1),     g = grad L(theta'; B2)
    first order:   Theta_k = Theta_k - beta g
    Hessian-free:  Theta_k = Theta_k - beta [ g - a (grad L(Theta_k + d g; B3)
                                                    - grad L(Theta_k - d g; B3)) / (2 d) ]

The paper's appendix with the algorithm is missing: this is Per-FedAvg's. Settled here: beta is the
round's rate, a has no schedule; statistics of norms follow the pass over B2 alone; B2 are the
batches that FedAvg would train on, so that with a = 0 it is FedAvg; clients' own models are made
for evaluation by one step of rate a, as in LA-SSFL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from coterie import kit
from coterie.kit import Batch, Bundle, ClientContext, Method, Tensors, fields, personal, stock


@final
@dataclass(frozen=True)
class MAMLSSFL(Method):
    """FedAvg without labels on the loss after a step of adaptation."""

    inner_lr: fields.NonNegative | None = None  # a; none: local.lr, whatever the schedule
    order: Literal["first", "hessian_free"] = "first"
    delta: fields.Positive = 1e-3  # d
    steps: fields.PositiveCount = 1  # of adaptation, for evaluation

    objectives = ("simsiam", "simclr")

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(self, ctx: ClientContext, down: Bundle, state: kit.State) -> kit.Answer:
        """Local iterations on the loss of the adapted model."""
        net = ctx.net(down["model"])
        rate = ctx.local.lr if self.inner_lr is None else self.inner_lr
        inner, third = ctx.batches("inner"), ctx.batches("third")
        here: Tensors = {}

        def come_back(net: kit.Network) -> None:
            personal.lay(net, here)
            if self.order == "hessian_free":
                self._correct(ctx, net, here, rate, third)

        stepper = kit.Stepper(ctx, net, hook=come_back)
        begin = True  # of a step, which may take several batches
        for batch in ctx.batches():
            if begin:
                here = kit.parameters(net)
                personal.lay(net, _moved(here, gradient(ctx, net, inner), -rate))
            begin = stepper(ctx.objective.loss(net, batch), batch)
        stepper.report()
        return Bundle({"model": ctx.shared(net)}), None

    def _correct(
        self,
        ctx: ClientContext,
        net: kit.Network,
        here: Tensors,
        rate: float,
        third: Iterator[Batch],
    ) -> None:
        """Put the Hessian-free term into the gradients of a step."""
        slope = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        batches = _window(ctx, third)
        sides = []
        for sign in (1.0, -1.0):
            personal.lay(net, _moved(here, slope, sign * self.delta))
            sides.append(gradient(ctx, net, iter(batches)))
        personal.lay(net, here)
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                bend = (sides[0][name] - sides[1][name]) / (2.0 * self.delta)
                parameter.grad.copy_(slope[name] - rate * bend)

    def personal(self, ctx: ClientContext, down: Bundle, state: kit.State) -> Tensors:
        """The global model after the steps of adaptation."""
        return personal.adapt(ctx, down["model"], self.steps, self.inner_lr)


def gradient(ctx: ClientContext, net: kit.Network, batches: Iterator[Batch]) -> Tensors:
    """The mean gradient over as many batches as a step takes; `grad` and buffers stay."""
    window, before = _window(ctx, batches), personal.buffers(net)
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in trained.items()}
    for batch in window:
        loss = ctx.objective.loss(net, batch).total / len(window)
        slopes: tuple[Tensor, ...] = torch.autograd.grad(loss, list(trained.values()))
        for name, slope in zip(trained, slopes, strict=True):
            total[name] += slope
    personal.lay(net, before)
    return total


def _window(ctx: ClientContext, batches: Iterator[Batch]) -> list[Batch]:
    """The batches of one step, which ends with its epoch at the latest."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == ctx.local.accumulate or batch.last:
            break
    return window


def _moved(weights: Tensors, slopes: Tensors, by: float) -> Tensors:
    return {name: weights[name] + by * slope for name, slope in slopes.items()}
