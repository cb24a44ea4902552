"""Stock functions that fill a method's slots: `server_update = stock.average`."""

from coterie.core.bundle import Bundle, Payload, ServerState, Tensors
from coterie.core.task import Round
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.local import train
from coterie.kit.method import Method
from coterie.kit.networks import Nets
from coterie.kit.personal import PERSONAL
from coterie.kit.prototypes import classification
from coterie.kit.stages import Answer, Replies, State


def start_from_net(self: Method, nets: Nets) -> ServerState:
    """Start from the freshly initialised network."""
    return Bundle({"model": nets.weights()})


def send_model(self: Method, server: ServerState, round: Round) -> Payload:
    """Send the global model."""
    return Bundle({"model": server["model"]})


def average(self: Method, ctx: ServerContext, server: ServerState, replies: Replies) -> ServerState:
    """w = sum_k (n_k / sum_j n_j) w_k over those who answered, then the server optimiser."""
    return ctx.step(server, ctx.reduce(replies)["model"])


def train_objective(self: Method, ctx: ClientContext, down: Payload, state: State) -> Answer:
    """Train the received model on this client's data, by the objective alone."""
    net = ctx.net(down["model"])
    train(ctx, net, ctx.objective.loss)
    return Bundle({"model": ctx.shared(net)}), None


def own_model(self: Method, ctx: ClientContext, down: Payload, state: State) -> Tensors:
    """theta_k as the client left it; before its first round the initial model, as everywhere."""
    return state[PERSONAL] if state else ctx.initial()


def global_model(self: Method, server: ServerState) -> Tensors:
    """The global model is the one that is tested."""
    return server["model"]


def train_classifier(self: Method, ctx: ClientContext, down: Payload, state: State) -> Answer:
    """Train the output layer of the received model alone, by cross-entropy."""
    net = ctx.net(down["model"])
    train(ctx, net, classification, only=("classifier",))
    return Bundle({"model": ctx.shared(net)}), state


def average_classifier(
    self: Method, ctx: ServerContext, server: ServerState, replies: Replies
) -> ServerState:
    """Average the models, and let only the output layer move: a server's momentum stops too."""
    moved = average(self, ctx, server, replies)
    layer = {n: t for n, t in moved["model"].items() if n.startswith("classifier.")}
    return moved.replace(model={**server["model"], **layer})
