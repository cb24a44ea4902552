"""FedProc: prototypical contrastive federated learning (Mu et al., 2021).

The server keeps a prototype c_k for every class, the mean of z over all samples of the class:

    loss  = alpha l_gpc + (1 - alpha) CE,      alpha = 1 - t / T
    l_gpc = -log( e^{s(z, c_y)} / sum_k e^{s(z, c_k)} ),      s the cosine
    c_k   = sum_i sum_{x in D_i^k} z / sum_i |D_i^k|,         z of client i's model after training

The authors' network divides z by its length (`net.unit_projection`), so that the output layer reads
z / |z| and prototypes are means of unit vectors. Their alpha runs over 100 rounds whatever T
(`alpha_horizon`), prototypes come from augmented images (`proto_transform`), and short last batches
are dropped (`local.drop_last`): `fedproc-official` in the shipped configurations. `similarity =
"dot"`, z . c / |c| with z as it is, is in neither paper nor code: an experiment of this library.

Left open by the paper, settled here: Algorithm 1 averages clients' means over all clients, which is
0/0 for a class that a client lacks; here prototypes are weighted by samples (`count`, as in the
authors' code) or a plain mean over owners (`mean`). A class that nobody of the round has keeps its
prototype; one that was never seen has no part in the softmax. The first round has no prototypes and
descends CE alone (`ce`), or an extraction with the initial model goes before it (`gpc_init`), which
does not shift alpha. Eq. 3 read literally lets CE train the output layer only (`ce_through`);
Algorithm 1 trains all. `schedule`: `linear` as above, `fixed` alpha, or `two-stage` (Table 4):
l_gpc with the output layer frozen, then CE with everything else frozen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Loss, Method, Stage, State, fields, stock

_COUNTS = {"n": kit.Entry("int64", ("classes",), least=0)}
_VECTORS: kit.Rules = {
    "class_sums": kit.Sum(like="prototypes"),
    "class_counts": kit.Sum(entries=_COUNTS),
}


def alpha_at(step: int, horizon: int) -> float:
    """1 - t / T, and 0 beyond T."""
    return max(0.0, 1.0 - step / horizon)


@final
@dataclass(frozen=True)
class FedProc(Method):
    """Local training towards global class prototypes."""

    similarity: kit.losses.Similarity = "cosine"
    tau: fields.Positive = 1.0
    schedule: Literal["linear", "fixed", "two-stage"] = "linear"
    alpha: fields.Share = 0.5  # weight of the prototypes under `fixed`
    alpha_horizon: fields.Count = 0  # T of alpha = 1 - t/T; 0: the rounds of the run
    stage1_fraction: fields.Share = 0.9  # of the rounds go to the representation under `two-stage`
    ce_through: Literal["all", "classifier"] = "all"
    proto_agg: Literal["count", "mean"] = "count"
    round0: Literal["ce", "gpc_init"] = "ce"
    proto_transform: kit.prototypes.Transform = "test"

    reduce: ClassVar = {"model": kit.Mean(), **_VECTORS}
    leaves: ClassVar[str] = (
        "weights, the sum of representations and the number of samples of every class"
    )

    model = stock.global_model
    train_head = stock.train_classifier
    move_head = stock.average_classifier
    send_model = stock.send_model

    def __post_init__(self) -> None:
        if self.schedule != "fixed" and self.alpha != 0.5:
            raise kit.ConfigError(
                f"method.alpha = {self.alpha} of fedproc needs method.schedule = 'fixed'; under "
                f"{self.schedule!r} it follows from the round"
            )
        if self.schedule != "two-stage" and self.stage1_fraction != 0.9:
            raise kit.ConfigError("method.stage1_fraction of fedproc needs schedule = 'two-stage'")

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """One stretch of training; what needs prototypes from the start extracts them first."""
        weights = {"model": kit.Mean()}
        if self.schedule == "fixed" and self.alpha == 0:  # prototypes have no part in the loss
            plain = Stage("train", rounds, broadcast=self.send_model, uploads=weights)
            return (replace(plain, client=self.train_plainly),)
        extract = Stage("extract", 1, client=self.extract, uploads=_VECTORS)
        training = Stage("train", rounds, client=self.train)
        if self.schedule != "two-stage":
            return (extract, training) if self.round0 == "gpc_init" else (training,)
        first, second = kit.split(rounds, self.stage1_fraction)
        features = Stage("features", first, client=self.train_features)
        head = Stage("classifier", second, broadcast=self.send_model, uploads=weights)
        head = replace(head, client=self.train_head, server=self.move_head)
        return kit.trim(extract, features, head)

    def init(self, nets: kit.Nets) -> Bundle:
        """The network, and no prototype."""
        prototypes, known = kit.prototypes.nothing_known(nets["model"], "c")
        return Bundle({"model": nets.weights(), "prototypes": prototypes, "known": known})

    def broadcast(self, server: Bundle, round: kit.Round) -> Bundle:
        """The model, the prototypes and which of them are known."""
        return Bundle({group: server[group] for group in ("model", "prototypes", "known")})

    def train_plainly(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train by cross-entropy alone."""
        net = ctx.net(down["model"])
        kit.train(ctx, net, self._classify)
        return Bundle({"model": ctx.shared(net)}), None

    def extract(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Sum up the classes under the received model."""
        return self._represented(ctx, ctx.net(down["model"])), None

    def train(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train by alpha l_gpc + (1 - alpha) CE, then sum up the classes."""
        net, alpha = ctx.net(down["model"]), self.alpha
        if self.schedule != "fixed":
            alpha = alpha_at(ctx.round.step, self.alpha_horizon or ctx.round.steps)
        known = bool(down["known"]["valid"].any())
        self._descend(ctx, net, down, alpha if known else 0.0, only=())
        return self._represented(ctx, net).replace(model=ctx.shared(net)), None

    def train_features(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train all but the output layer by l_gpc, then sum up the classes."""
        kit.prototypes.require_some(down["known"]["valid"], "the round of extraction had no answer")
        net = ctx.net(down["model"])
        self._descend(ctx, net, down, 1.0, only=kit.prototypes.all_but_classifier(net))
        return self._represented(ctx, net).replace(model=ctx.shared(net)), None

    def _represented(self, ctx: ClientContext, net: kit.Network) -> Bundle:
        """The sums and counts of this client's classes."""
        classes = kit.prototypes.represent(ctx, net, self.proto_transform)
        sums, counts = classes.sums, classes.counts
        if self.proto_agg == "mean":
            sums, counts = classes.means, (classes.counts > 0).to(torch.int64)
        ctx.metrics["feature_std"] = classes.feature_std
        return Bundle({"class_sums": {"c": sums}, "class_counts": {"n": counts}})

    def _descend(
        self, ctx: ClientContext, net: kit.Network, down: Bundle, alpha: float, only: Sequence[str]
    ) -> None:
        """Local training with a given weight of the prototypes."""
        device = next(net.parameters()).device
        prototypes, known = down["prototypes"]["c"].to(device), down["known"]["valid"].to(device)

        def loss(net: kit.Network, batch: kit.Batch) -> Loss:
            if alpha == 0.0:
                return self._classify(net, batch)
            outputs = net(batch.x)
            z, terms = outputs.z, dict[str, Tensor]()
            if alpha < 1.0:
                terms["class"] = (1.0 - alpha) * self._entropy(net, outputs, batch.y)
            terms["prototype"] = alpha * kit.losses.prototype_contrast(
                z, batch.y, prototypes, known, self.tau, self.similarity
            )
            near = F.cosine_similarity(z.detach(), prototypes[batch.y], dim=-1).mean()
            return Loss.sum(terms, {"cos_prototype": near})

        kit.train(ctx, net, loss, only=only)
        ctx.metrics["alpha"] = alpha

    def _classify(self, net: kit.Network, batch: kit.Batch) -> Loss:
        return Loss.sum({"class": self._entropy(net, net(batch.x), batch.y)})

    def _entropy(self, net: kit.Network, outputs: kit.Outputs, y: Tensor) -> Tensor:
        """Cross-entropy, through the whole network or into the output layer alone."""
        logits = outputs.logits
        if self.ce_through == "classifier" and net.classifier is not None:
            logits = net.classifier(outputs.z.detach())
        assert logits is not None  # the objective has a classifier
        return F.cross_entropy(logits, y)

    def server_update(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Renew the prototypes of the classes that were seen; average the models, if sent."""
        reduced = ctx.reduce(replies)
        if "class_sums" in reduced.groups:
            sums, counts = reduced["class_sums"]["c"], reduced["class_counts"]["n"]
            seen = counts > 0
            fresh = sums / counts.clamp(min=1)[:, None]
            old, known = server["prototypes"]["c"], server["known"]["valid"]
            server = server.replace(
                prototypes={"c": torch.where(seen[:, None], fresh, old)},
                known={"valid": known | seen},
            )
            ctx.metrics["classes_known"] = float((known | seen).sum())
        return ctx.step(server, reduced["model"]) if "model" in reduced.groups else server
