"""SOLO: every client trains alone, from its own initialisation, and sends nothing.

    w_i = local training of w_i on client i

The lower bound that federated methods are compared with. There is no global model: the reported
accuracy is the mean over the clients' models on the global test set, its spread the standard
deviation over clients. A client trains in the rounds it is invited to; `run.rounds` times
`local.epochs` is what a published "300 epochs" corresponds to.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Method, State, Tensors, train


@final
@dataclass(frozen=True)
class Solo(Method):
    """No federation at all. Works with any objective."""

    objectives = None
    reduce: ClassVar = {}
    leaves: ClassVar[str] = "nothing"
    draws_fresh = True  # every client starts from weights of its own

    def init(self, nets: kit.Nets) -> Bundle:
        """The server knows nothing."""
        return Bundle()

    def broadcast(self, server: Bundle, round: kit.Round) -> Bundle:
        """Nothing is sent."""
        return Bundle()

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Continue to train this client's own model."""
        net = ctx.net(state["model"] if state else ctx.fresh())
        train(ctx, net, ctx.objective.loss)
        return Bundle(), Bundle({"model": ctx.weights(net)})

    def server_update(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Nothing was received."""
        return server

    def model(self, server: Bundle) -> Tensors | None:
        """There is no global model."""
        return None

    def personal(self, ctx: ClientContext, down: Bundle, state: State) -> Tensors | None:
        """The client's model; before its first round, its own initialisation."""
        return state["model"] if state else ctx.fresh()
