"""FedProx: federated averaging with a proximal term (Li et al., MLSys 2020).

Each client stays near the model it received:

    loss = L(w) + (mu / 2) |w - w_t|^2,     over parameters, not over buffers

With `part = "head"` the sum is over all that is not the backbone: projector, predictor, prototypes,
classifier. The MFCL paper's FedSimCLR and FedSwAV have "the regularization techniques of Luo et al.
(2021)", which are for classifiers; without one, the head takes its place.

Settled here: the term enters as its gradient mu (w - w_t) when a step's gradients are complete, so
that accumulation counts it once; the paper's inexact solving (a number of epochs per client) is
`[local]`, the same for all.
"""

from dataclasses import dataclass
from typing import Literal, final

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Method, State, fields, stock, train

_BODY = "backbone."


@final
@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a pull towards the received model. Works with any objective."""

    mu: fields.NonNegative = 0.01  # weight of the proximal term
    part: Literal["all", "head"] = "all"  # what is held: all parameters, or all but the backbone's

    objectives = None

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train with the proximal gradient."""
        net = ctx.net(down["model"])
        anchor = kit.parameters(net)
        held = {n: w for n, w in anchor.items() if self.part == "all" or not n.startswith(_BODY)}
        train(ctx, net, ctx.objective.loss, hook=kit.pull_towards(held, self.mu))
        gaps = (weight - anchor[name] for name, weight in kit.parameters(net).items())
        ctx.metrics["drift"] = sum(float(gap.square().sum()) for gap in gaps) ** 0.5
        return Bundle({"model": ctx.shared(net)}), None
