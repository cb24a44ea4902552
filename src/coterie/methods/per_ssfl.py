"""Per-SSFL: personal models whose representations stay near the global one's (He et al., 2021).

On two views of every batch, with Z, P of the global and z, p of the personal model:

    L_g = [ D(P1, sg Z2) + D(P2, sg Z1) ] / 2
    L_p = [ D(p1, sg z2) + D(p2, sg z1) ] / 2
          + lambda / 4 [ D(p1, sg P1) + D(p1, sg P2) + D(p2, sg P1) + D(p2, sg P2) ]
    Theta_k = Theta_k - beta grad L_g,     theta_k = theta_k - beta grad L_p

D is the negative cosine. Theta_k is averaged as in FedAvg, theta_k never leaves its client.
Algorithm 2 as printed restarts Theta_k in every iteration and lets no hat stand over P; settled
here: Theta_k continues, P is a constant of the same forward pass (`anchor = "current"`) or comes
from the model as received, in eval mode (`received`); both models see the same two views unless
`independent_views`; weights are normalised over those who answered; a client starts from the
initial model; s local iterations are `local.steps`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from coterie import kit
from coterie.kit import Answer, Batch, Bundle, ClientContext, Method, State, fields, personal, stock


def pull(p1: Tensor, p2: Tensor, goal1: Tensor, goal2: Tensor) -> Tensor:
    """The mean of D over the four pairs of personal and global predictions."""
    pairs = ((p, goal) for p in (p1, p2) for goal in (goal1, goal2))
    terms = (kit.losses.negative_cosine(p, goal) / 4 for p, goal in pairs)
    return sum(terms, p1.new_zeros(()))


@final
@dataclass(frozen=True)
class PerSSFL(Method):
    """FedAvg of SimSiam, and personal models drawn to its predictions."""

    lam: fields.NonNegative = 0.1  # lambda, the weight of the pull
    anchor: Literal["current", "received"] = "current"
    independent_views: bool = False

    objectives = ("simsiam",)

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model
    personal = stock.own_model  # theta_k

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train both models, the personal one towards the predictions of the other."""
        shared, own = personal.both_networks(ctx, down["model"], self.personal(ctx, down, state))
        received = ctx.frozen(down["model"]) if self.anchor == "received" else None
        theirs, ours = kit.Stepper(ctx, shared), kit.Stepper(ctx, own, name=personal.PERSONAL)
        for batch, other in self._batches(ctx):
            common = ctx.objective.loss(shared, batch)
            mine = ctx.objective.loss(own, other)
            if self.lam > 0:
                goals = common.outputs if received is None else received.each(batch.views)
                (one, two), (goal1, goal2) = mine.outputs, goals
                assert one.p is not None and two.p is not None
                assert goal1.p is not None and goal2.p is not None
                term = self.lam * pull(one.p, two.p, goal1.p, goal2.p)
                terms = {"self": mine.total, "pull": term}
                mine = kit.Loss.sum(terms, mine.notes)
            theirs(common, batch)
            ours(mine, other)
        for stepper in (ours, theirs):
            stepper.report()
        return Bundle({"model": ctx.shared(shared)}), Bundle({personal.PERSONAL: ctx.weights(own)})

    def _batches(self, ctx: ClientContext) -> Iterator[tuple[Batch, Batch]]:
        """The batches of the global and of the personal model: the same samples."""
        if not self.independent_views:
            for batch in ctx.batches():
                yield batch, batch
            return
        order_of_train = ctx.data.batches(
            ctx.local,
            ctx.objective.views,
            lambda what: ctx.generator(
                f"{'train' if 'order' in what else personal.PERSONAL}/{what}"
            ),
        )
        yield from zip(ctx.batches(), order_of_train, strict=True)
