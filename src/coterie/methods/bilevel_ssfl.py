"""BiLevel-SSFL: a model of one's own, held near the global one (He et al., SSFL, 2021; Ditto).

    min_{theta_k} L(theta_k; D_k) + (lambda / 2) |theta_k - Theta|^2

Per local iteration, on the same batch:

    theta_k = theta_k - beta [ grad L(theta_k) + lambda (theta_k - Theta_t) ]
    Theta_k = Theta_k - beta grad L(Theta_k)

Theta_t is the model as received, Theta_k is averaged as in FedAvg, theta_k never leaves its client.
The paper's appendix with the algorithm is missing: this is Ditto's order and anchor. The pull is on
parameters, not on statistics of norms; both models have an optimiser of their own, new in every
round; a client starts from the initial model.
"""

from dataclasses import dataclass
from typing import final

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Method, State, fields, personal, stock


@final
@dataclass(frozen=True)
class BiLevelSSFL(Method):
    """FedAvg without labels, and personal models with a pull towards the global one."""

    lam: fields.NonNegative = 0.1  # lambda, the weight of the pull

    objectives = ("simsiam", "simclr", "byol", "swav")

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model
    personal = stock.own_model  # theta_k

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train both models on the same batches, the personal one first."""
        shared, own = personal.both_networks(ctx, down["model"], self.personal(ctx, down, state))
        pull = kit.pull_towards(kit.parameters(shared), self.lam)
        ours = kit.Stepper(ctx, own, hook=pull, name=personal.PERSONAL)
        theirs = kit.Stepper(ctx, shared)
        for batch in ctx.batches():
            ours(ctx.objective.loss(own, batch), batch)
            theirs(ctx.objective.loss(shared, batch), batch)
        for stepper in (ours, theirs):
            stepper.report()
        return Bundle({"model": ctx.shared(shared)}), Bundle({personal.PERSONAL: ctx.weights(own)})
