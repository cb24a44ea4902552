"""FedProc: prototypical contrastive federated learning (Mu et al., 2021).

The server keeps a prototype c_k for every class, the mean of z over all samples of the class:

    loss  = alpha l_gpc + (1 - alpha) CE,      alpha = 1 - t / T
    l_gpc = -log( e^{s(z, c_y)} / sum_k e^{s(z, c_k)} ),      s the cosine
    c_k   = sum_i sum_{x in D_i^k} z / sum_i |D_i^k|,         z of client i's model after training

The authors' code takes s(z, c) = z . c / |c| with z as it is (`similarity = "dot"`), alpha over 100
rounds whatever T (`alpha_horizon`), and prototypes from augmented images (`proto_transform`):
`fedproc-official` in the shipped configurations.

Left open by the paper, settled here: Algorithm 1 averages clients' means over all clients, which is
0/0 for a class that a client lacks; here prototypes are weighted by samples (`count`, as in the
authors' code) or a plain mean over owners (`mean`). A class that nobody of the round has keeps its
prototype; one that was never seen has no part in the softmax. The first round has no prototypes and
descends CE alone (`ce`), or an extraction with the initial model goes before it (`gpc_init`), which
does not shift alpha. Eq. 3 read literally lets CE train the output layer only (`ce_through`);
Algorithm 1 trains all. `schedule`: `linear` as above, `fixed` alpha, or `two-stage` (Table 4):
l_gpc with the output layer frozen, then CE with everything else frozen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ClientState, Payload, ServerState
from coterie.core.errors import ConfigError
from coterie.core.fields import Count, Positive, Share
from coterie.core.task import Reply, Round, Stage
from coterie.kit import stock
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.local import train
from coterie.kit.losses import Similarity, prototype_contrast
from coterie.kit.method import Method
from coterie.kit.networks import Nets
from coterie.kit.objective import Loss
from coterie.kit.prototypes import (
    CLASSIFIER,
    EXTRACT,
    FEATURES,
    Transform,
    all_but_classifier,
    nothing_known,
    only_classifier,
    represent,
    require_some,
    two_stages,
)
from coterie.nets.heads import Network, Outputs


def alpha_at(step: int, horizon: int) -> float:
    """1 - t / T, and 0 beyond T."""
    return max(0.0, 1.0 - step / horizon)


@final
@dataclass(frozen=True)
class FedProc(Method):
    """Local training towards global class prototypes."""

    similarity: Similarity = "cosine"
    tau: Positive = 1.0
    schedule: Literal["linear", "fixed", "two-stage"] = "linear"
    alpha: Share = 0.5  # weight of the prototypes under `fixed`
    alpha_horizon: Count = 0  # T of alpha = 1 - t/T; 0: the rounds of the run
    stage1_fraction: Share = 0.9  # of the rounds go to the representation under `two-stage`
    ce_through: Literal["all", "classifier"] = "all"
    proto_agg: Literal["count", "mean"] = "count"
    round0: Literal["ce", "gpc_init"] = "ce"
    proto_transform: Transform = "test"

    reduce: ClassVar = {"model": "mean", "class_sums": "sum:prototypes", "class_counts": "sum"}
    leaves: ClassVar[str] = (
        "weights, the sum of representations and the number of samples of every class"
    )

    model = stock.global_model

    def __post_init__(self) -> None:
        if self.schedule != "fixed" and self.alpha != 0.5:
            raise ConfigError(
                f"method.alpha = {self.alpha} of fedproc needs method.schedule = 'fixed'; under "
                f"{self.schedule!r} it follows from the round"
            )
        if self.schedule != "two-stage" and self.stage1_fraction != 0.9:
            raise ConfigError("method.stage1_fraction of fedproc needs schedule = 'two-stage'")

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """One stretch of training; what needs prototypes from the start extracts them first."""
        if self.schedule == "two-stage":
            return two_stages(rounds, self.stage1_fraction)
        training = (Stage("train", rounds),)
        extracts = self._attracts and self.round0 == "gpc_init"
        return (Stage(EXTRACT, 1), *training) if extracts else training

    @property
    def _attracts(self) -> bool:
        """Whether prototypes have a part in the loss at all."""
        return self.schedule != "fixed" or self.alpha > 0

    def uploads(self, stage: str) -> Mapping[str, str]:
        """No weights where nothing is trained, no prototypes where they have done their work."""
        vectors = ("class_sums", "class_counts")
        left_out = {EXTRACT: ("model",), CLASSIFIER: vectors}.get(stage, ())
        left_out = left_out if self._attracts else vectors
        return {group: rule for group, rule in self.reduce.items() if group not in left_out}

    def init(self, nets: Nets) -> ServerState:
        """The network, and no prototype."""
        prototypes, known = nothing_known(nets["model"], "c")
        return Bundle({"model": nets.weights(), "prototypes": prototypes, "known": known})

    def broadcast(self, server: ServerState, round: Round) -> Payload:
        """The model, the prototypes and which of them are known."""
        alone = round.stage == CLASSIFIER or not self._attracts
        wanted = ("model",) if alone else ("model", "prototypes", "known")
        return Bundle({group: server[group] for group in wanted})

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        """Train by the loss of the round, then sum up the classes."""
        net = ctx.net(down["model"])
        stage = ctx.round.stage
        if stage == CLASSIFIER or not self._attracts:
            only = ("classifier",) if stage == CLASSIFIER else ()
            train(ctx, net, self._classify, only=only)
            return Bundle({"model": ctx.shared(net)}), None
        if stage != EXTRACT:
            self._train(ctx, net, down)
        found = represent(ctx, net, self.proto_transform)
        sums, counts = found.sums, found.counts
        if self.proto_agg == "mean":
            sums, counts = found.means, (found.counts > 0).to(torch.int64)
        up = Bundle({"class_sums": {"c": sums}, "class_counts": {"n": counts}})
        ctx.metrics["feature_std"] = found.feature_std
        return (up if stage == EXTRACT else up.replace(model=ctx.shared(net))), None

    def _train(self, ctx: ClientContext, net: Network, down: Payload) -> None:
        known = down["known"]["valid"]
        if ctx.round.stage == FEATURES:
            require_some(known, "the round of extraction had no answer")
        alpha = self._alpha(ctx.round, bool(known.any()))
        device = next(net.parameters()).device
        prototypes, known = down["prototypes"]["c"].to(device), known.to(device)

        def loss(net: Network, batch: Batch) -> Loss:
            if alpha == 0.0:
                return self._classify(net, batch)
            outputs = net(batch.x)
            z, terms = outputs.z, dict[str, Tensor]()
            if alpha < 1.0:
                terms["class"] = (1.0 - alpha) * self._entropy(net, outputs, batch.y)
            terms["prototype"] = alpha * prototype_contrast(
                z, batch.y, prototypes, known, self.tau, self.similarity
            )
            near = F.cosine_similarity(z.detach(), prototypes[batch.y], dim=-1).mean()
            return Loss.sum(terms, {"cos_prototype": near})

        only = all_but_classifier(net) if ctx.round.stage == FEATURES else ()
        train(ctx, net, loss, only=only)
        ctx.metrics["alpha"] = alpha

    def _classify(self, net: Network, batch: Batch) -> Loss:
        return Loss.sum({"class": self._entropy(net, net(batch.x), batch.y)})

    def _entropy(self, net: Network, outputs: Outputs, y: Tensor) -> Tensor:
        """Cross-entropy, through the whole network or into the output layer alone."""
        logits = outputs.logits
        if self.ce_through == "classifier" and net.classifier is not None:
            logits = net.classifier(outputs.z.detach())
        assert logits is not None  # the objective has a classifier
        return F.cross_entropy(logits, y)

    def _alpha(self, round: Round, known: bool) -> float:
        if round.stage == FEATURES:
            return 1.0
        if not known:
            return 0.0
        if self.schedule == "fixed":
            return self.alpha
        return alpha_at(round.step, self.alpha_horizon or round.steps)

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        """Average the models; renew the prototypes of the classes that were seen."""
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
        if "model" not in reduced.groups:
            return server
        moved = ctx.step(server, reduced["model"])
        return only_classifier(server, moved) if ctx.round.stage == CLASSIFIER else moved
