"""MOON: model-contrastive federated learning (Li, He, Song, CVPR 2021).

Each client pulls its representation z towards the one that the global model gives the same image,
and away from those that its own previous models give:

    loss = CE(y_hat, y) + mu l_con
    l_con = -log( e^{s_glob} / (e^{s_glob} + sum_b e^{s_b}) ),
            s_glob = cos(z, z_glob) / tau,  s_b = cos(z, z_prev_b) / tau

`term = "l2"` is the paper's Table 5: mu |z - z_glob| instead of mu l_con, no previous model.

Left open by the paper, settled here: the previous model is the one at the end of the client's own
last training, before averaging; a client that has none leaves the second term out (`skip`), or,
after the first round, takes its own random initialisation (`random_init`, what the authors' code
does to late comers); both reference networks are in eval mode and see the same augmented image;
BatchNorm statistics are averaged. The authors' shifting of a buffer of three or more models
overwrites the older ones: here a buffer keeps the last B.
"""

from dataclasses import dataclass
from typing import Literal, final

from torch.nn import functional as F

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Loss, Method, State, fields, stock, train


@final
@dataclass(frozen=True)
class MOON(Method):
    """FedAvg with a contrast between the local, the global and the previous local model."""

    mu: fields.NonNegative = 5.0  # weight of the second term
    tau: fields.Positive = 0.5  # its temperature
    buffer: fields.PositiveCount = 1  # how many previous models a client keeps
    first: Literal["skip", "random_init"] = "skip"  # a client without a previous model
    term: Literal["contrast", "l2"] = "contrast"

    def __post_init__(self) -> None:
        if self.term == "l2" and (self.buffer, self.first) != (1, "skip"):
            raise kit.ConfigError(
                "method.term = 'l2' of moon keeps no previous model: leave method.buffer and "
                "method.first out"
            )

    @property
    def draws_fresh(self) -> bool:
        """Whether a client without a previous model takes an initialisation of its own."""
        return self.first == "random_init"

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train against the reference models; remember the result as the newest of them."""
        net = ctx.net(down["model"])
        earlier = self._earlier(ctx, state)
        contrasts = self.mu > 0 and (bool(earlier) or self.term == "l2")
        references = ctx.references([down["model"], *earlier]) if contrasts else None

        def loss(net: kit.Network, batch: kit.Batch) -> Loss:
            others = None if references is None else references(batch)
            outputs = net(batch.x)  # last, for what its gradients need is in the caches then
            terms = {"class": F.cross_entropy(outputs.logits, batch.y)}
            if others is None:
                return Loss.sum(terms)
            z, (z_glob, *z_prevs) = outputs.z, others
            if self.term == "l2":
                near = F.cosine_similarity(z.detach(), z_glob, dim=-1).mean()
                terms["l2"] = self.mu * kit.losses.representation_gap(z, z_glob)
                return Loss.sum(terms, {"cos_glob": near})
            term = kit.losses.model_contrast(z, z_glob, z_prevs, self.tau)
            terms["contrast"] = self.mu * term.loss
            return Loss.sum(terms, {"cos_glob": term.cos_glob, "cos_prev": term.cos_prev})

        train(ctx, net, loss)
        up = Bundle({"model": ctx.shared(net)})
        if self.mu == 0 or self.term == "l2":
            return up, None
        kept = [ctx.weights(net), *_previous(state)][: self.buffer]
        return up, Bundle({f"previous_{age}": weights for age, weights in enumerate(kept)})

    def _earlier(self, ctx: ClientContext, state: State) -> list[kit.Tensors]:
        """The previous models to contrast with, newest first."""
        if self.term == "l2" or self.mu == 0:
            return []
        if state is None and self.first == "random_init" and ctx.round.step > 0:
            return [ctx.fresh()]
        return _previous(state)


def _previous(state: State) -> list[kit.Tensors]:
    """The models of a state, newest first."""
    return [state[f"previous_{age}"] for age in range(len(state.tensors))] if state else []
