"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020), option II.

The server keeps c, client i keeps c_i, both zero at first. A local step of rate eta is

    y = y - eta (g(y) - c_i + c)

and after K steps from x

    c_i' = c_i - c + (x - y) / (K eta)
    x    = sum_i (n_i / n) y_i,          c = c + (1/N) sum_i (c_i' - c_i)

with N all clients of the federation. Settled here: models are averaged by numbers of samples (the
paper: uniformly), c is not; parameters only, buffers are averaged plainly. With momentum rho a step
moves about 1 / (1 - rho) times as far, so K is replaced by the effective number of steps

    a = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)

and the default is rho = 0, whatever `local.momentum` says. `correction` says where c - c_i enters:
`gradient` adds it to the gradient, `post_step` subtracts eta (c - c_i) from the weights after the
optimiser's step. Past the momentum it moves the weights by K steps, not by a:

    c_i' = ((x - y) / eta - K (c - c_i)) / a
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Method, State, Tensors, fields, stock


def effective_steps(steps: int, momentum: float) -> float:
    """How many plain steps the same gradients would need: a of the equation above."""
    return (steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)) / (1.0 - momentum)


@final
@dataclass(frozen=True)
class Scaffold(Method):
    """Local training corrected by control variates. Works with any objective."""

    momentum: fields.Decay = 0.0  # of the local optimiser, instead of local.momentum
    correction: Literal["gradient", "post_step"] = "gradient"

    objectives = None
    reduce: ClassVar = {"model": kit.Mean(), "control": kit.Sum()}
    leaves: ClassVar[str] = "weights, a control variate as large, and its number of samples"

    model = stock.global_model

    def check(self, local: kit.Local) -> None:
        """The control variates assume steps of plain SGD."""
        if local.optimizer != "sgd":
            raise kit.ConfigError(
                f"method.name = 'scaffold' needs local.optimizer = 'sgd', not {local.optimizer!r}"
            )
        if local.nesterov and self.momentum > 0:
            raise kit.ConfigError("method.momentum of scaffold counts steps without local.nesterov")

    def init(self, nets: kit.Nets) -> Bundle:
        """The network, and c = 0."""
        trained = dict(nets["model"].named_parameters())
        weights = nets.weights()
        control = {name: torch.zeros_like(weights[name]) for name in trained if name in weights}
        return Bundle({"model": weights, "control": control})

    def broadcast(self, server: Bundle, round: kit.Round) -> Bundle:
        """x and c."""
        return Bundle({"model": server["model"], "control": server["control"]})

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """K corrected steps, then the new control variate."""
        received, control = down["model"], down["control"]
        own = state["control"] if state else {n: torch.zeros_like(t) for n, t in control.items()}
        nesterov = ctx.local.nesterov and self.momentum > 0
        local = replace(ctx.local, momentum=self.momentum, nesterov=nesterov)
        net, rate = ctx.net(received), local.rate(ctx.round)
        shift = {
            name: (control[name] - own[name]).to(weight.device)
            for name, weight in net.named_parameters()
            if name in control
        }

        def correct_gradient(net: kit.Network) -> None:
            for name, weight in net.named_parameters():
                if name in shift and weight.grad is not None:
                    weight.grad.add_(shift[name])

        @torch.no_grad()
        def correct_weights(net: kit.Network) -> None:
            for name, weight in net.named_parameters():
                if name in shift:
                    weight.sub_(shift[name], alpha=rate)

        hooks = {"gradient": (correct_gradient, None), "post_step": (None, correct_weights)}
        hook, after = hooks[self.correction]
        stepper = kit.Stepper(ctx, net, local=local, hook=hook, after=after)
        for batch in ctx.batches():
            stepper(ctx.objective.loss(net, batch), batch)
        stepper.report()
        weights = ctx.shared(net)
        gradient = self._gradient(received, weights, control, own, rate, stepper.steps)
        change = {name: gradient[name] - own[name] for name in gradient}
        renewed = {name: own[name] + change[name] for name in change}
        return Bundle({"model": weights, "control": change}), Bundle({"control": renewed})

    def _gradient(
        self, x: Tensors, y: Tensors, control: Tensors, own: Tensors, rate: float, steps: int
    ) -> Tensors:
        """c_i': the client's mean gradient, recovered from how far its weights moved."""
        length = effective_steps(steps, self.momentum)
        corrected = length if self.correction == "gradient" else float(steps)
        return {
            name: ((x[name] - y[name]) / rate - corrected * (control[name] - own[name])) / length
            for name in control
        }

    def server_update(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Average the models; move c by the clients' changes over all N clients."""
        reduced = ctx.reduce(replies)
        share, change = 1.0 / ctx.round.clients, reduced["control"]
        control = {n: c + share * change[n] for n, c in server["control"].items()}
        return ctx.step(server, reduced["model"]).replace(control=control)
