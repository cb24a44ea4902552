"""LA-SSFL: local adaptation of a self-supervised global model (He et al., SSFL, 2021).

The global model Theta is trained as in FedAvg. A client's own model is made for evaluation only:

    theta_k = Theta - beta grad L(Theta; B),     one step on one batch of the client, then discarded

Settled here: a plain SGD step (no momentum, no decay), in training mode. beta has no schedule: the
paper sees LA-SSFL diverge late in training, which it could not at a rate that vanishes; after the
last round of a cosine theta_k would be Theta.
"""

from dataclasses import dataclass
from typing import final

from coterie.kit import Bundle, ClientContext, Method, State, Tensors, fields, personal, stock


@final
@dataclass(frozen=True)
class LASSFL(Method):
    """FedAvg without labels; clients adapt the global model by a step."""

    steps: fields.PositiveCount = 1  # of adaptation
    lr: fields.Positive | None = None  # beta; none: local.lr, whatever the schedule

    objectives = ("simsiam", "simclr", "byol", "swav")

    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model

    def personal(self, ctx: ClientContext, down: Bundle, state: State) -> Tensors:
        """The global model after the steps of adaptation."""
        return personal.adapt(ctx, down["model"], self.steps, self.lr)
