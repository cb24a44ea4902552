"""FedSSC: shared supervised-contrastive federated learning (Hu et al., 2022).

MOON's loss with a third term: z is pulled towards the representation of its class that another
device shared, and away from those of the other classes:

    loss   = CE + mu_moon l_moon + mu_glob(t) l_glob
    l_glob = -log( e^{cos(z, zs_y)/tau} / sum_k e^{cos(z, zs_k)/tau} )
    zs_k   = the mean of k_shared devices' class means, drawn anew for every device and round
    mu_glob(t) = mu_glob while t < hold, then linearly down to mu_glob_end at t = T

After its last epoch a device sends the mean of z of every class that it has `min_count` samples of.

The paper contradicts itself or is silent, and is settled here: the draw is for each device from the
others (`exclude_self`; its own where nobody else has the class; `shared_draw`: one draw for all);
Algorithm 1's mean over all devices is `k_shared = "all"`, over owners. mu_glob's printed formula
has no round in it. The first round has no zs and is FedAvg's, unless `init_with = "extract"` puts a
round of extraction before it. A class that nobody shares keeps what was last shared (`stale`), or
has no part in the softmax. tau is not given: MOON's 0.5. `negative` changes the pair that l_moon
pushes from (Section IV): the global model's z of the next sample of another class in the batch, or
nothing, -cos(z, z_glob)/tau. `two_stage` (Figure 2): first the contrastive terms with the output
layer frozen and mu_glob constant, then CE on the output layer. `local_pairs`: pairs within the
batch join those with zs. No code was published.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.errors import ConfigError
from coterie.core.fields import Count, NonNegative, Positive, PositiveCount, Share
from coterie.core.task import ClientId, Reply, Round, Stage
from coterie.kit import stock
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.local import train
from coterie.kit.losses import class_pairs, model_contrast, prototype_contrast
from coterie.kit.method import Method
from coterie.kit.networks import Nets
from coterie.kit.objective import Loss
from coterie.kit.prototypes import (
    CLASSIFIER,
    EXTRACT,
    FEATURES,
    all_but_classifier,
    classification,
    nothing_known,
    only_classifier,
    represent,
    require_some,
    two_stages,
)
from coterie.nets.heads import Network

All = Literal["all"]


def weight_at(step: int, steps: int, hold: int, start: float, end: float) -> float:
    """mu_glob(t): `start` while t < hold, then linear, `end` at t = T."""
    if step < hold or steps <= hold:
        return start
    return start - (step - hold) / (steps - hold) * (start - end)


def draw(
    vectors: Tensor,
    counts: Tensor,
    clients: Tensor,
    client: ClientId | None,
    k: int | All,
    generator: np.random.Generator,
    exclude_self: bool,
) -> tuple[Tensor, Tensor]:
    """For every class the mean of k pool entries, and which classes have one.

    `vectors` is (entries, classes, width), `counts` says which of them are shared, `clients` whose
    they are. Where there are fewer than k entries all are averaged; `all` takes everybody's, also
    the receiver's own.
    """
    classes, width = vectors.shape[1:]
    zs, known = torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool)
    for label in range(classes):
        shared = torch.nonzero(counts[:, label] > 0).flatten()
        others = shared
        if exclude_self and client is not None and k != "all":
            others = shared[clients[shared] != client]
        usable = (others if len(others) else shared).numpy()
        wanted = len(usable) if k == "all" else min(k, len(usable))
        if wanted:
            chosen = usable if wanted == len(usable) else generator.choice(usable, wanted, False)
            zs[label] = vectors[torch.from_numpy(np.sort(chosen)), label].mean(dim=0)
            known[label] = True
    return zs, known


def other_class(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For every sample the z of the next one in the batch of another class; and where none is."""
    size = len(y)
    ahead = (
        torch.arange(size, device=y.device)[:, None] + torch.arange(size, device=y.device)
    ) % size
    differs = y[ahead] != y[:, None]
    found = ahead.gather(1, differs.to(torch.int64).argmax(dim=1, keepdim=True)).squeeze(1)
    return z[found], differs.any(dim=1)


@final
@dataclass(frozen=True)
class FedSSC(Method):
    """MOON with class representations that devices share."""

    mu_moon: NonNegative = 5.0  # weight of MOON's term
    mu_glob: NonNegative = 1.0  # weight of the shared representations, at the start
    mu_glob_end: NonNegative = 1e-4  # and at the end
    hold: Count = 5  # rounds before the weight falls
    tau: Positive = 0.5  # temperature of both terms
    k_shared: Count | All = 1  # devices whose representation of a class is averaged; 0: none
    min_count: PositiveCount = 10  # samples of a class that a device needs to share it
    exclude_self: bool = True
    shared_draw: bool = False  # one draw for all devices; it may hold a device's own vector
    stale: Literal["keep", "drop"] = "keep"
    init_with: Literal["none", "extract"] = "none"
    negative: Literal["previous", "other_class", "none"] = "previous"
    two_stage: bool = False
    stage1: Literal["glob", "moon+glob"] = "glob"
    stage1_fraction: Share = 0.9
    local_pairs: bool = False

    reduce: ClassVar = {"model": "mean", "class_means": "gather", "class_counts": "gather"}
    leaves: ClassVar[str] = (
        "weights, the mean representation and the number of samples of every class that it has "
        "method.min_count samples of"
    )

    broadcast = stock.send_model
    model = stock.global_model

    def __post_init__(self) -> None:
        nothing = self.mu_glob == 0 or (self.k_shared == 0 and not self.local_pairs)
        if not self.two_stage and (self.stage1, self.stage1_fraction) != ("glob", 0.9):
            raise ConfigError("method.stage1 and stage1_fraction of fedssc need two_stage = true")
        if self.two_stage and nothing:
            raise ConfigError(
                "method.two_stage = true of fedssc trains the representation by what is shared: "
                "method.mu_glob and method.k_shared must be above 0"
            )

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """One stretch of training; what needs representations from the start extracts them."""
        if self.two_stage:
            stages = two_stages(rounds, self.stage1_fraction)
            return stages if self._shares else stages[1:]
        training = (Stage("train", rounds),)
        extracts = self._shares and self.init_with == "extract"
        return (Stage(EXTRACT, 1), *training) if extracts else training

    @property
    def _shares(self) -> bool:
        return self.mu_glob > 0 and self.k_shared != 0

    def uploads(self, stage: str) -> Mapping[str, str]:
        """No weights where nothing is trained, no representations where nobody needs them."""
        vectors = ("class_means", "class_counts")
        left_out = {EXTRACT: ("model",), CLASSIFIER: vectors}.get(stage, ())
        left_out = left_out if self._shares else vectors
        return {group: rule for group, rule in self.reduce.items() if group not in left_out}

    def init(self, nets: Nets) -> ServerState:
        """The network, and an empty pool."""
        vectors = nothing_known(nets["model"], "zs")[0]["zs"]
        pool = {
            "vectors": torch.zeros(0, *vectors.shape),
            "counts": torch.zeros(0, len(vectors), dtype=torch.int64),
            "clients": torch.zeros(0, dtype=torch.int64),
        }
        return Bundle({"model": nets.weights(), "pool": pool})

    def address(self, server: ServerState, round: Round, client: ClientId) -> Payload | None:
        """The representations drawn for this device; nothing where they have no part."""
        pool = server["pool"]
        trained = round.stage not in (EXTRACT, CLASSIFIER)
        if not (trained and self._shares and len(pool["clients"])):
            return None
        receiver = None if self.shared_draw else client
        zs, known = draw(
            pool["vectors"],
            pool["counts"],
            pool["clients"],
            receiver,
            self.k_shared,
            round.generator("share", receiver),
            self.exclude_self,
        )
        return Bundle({"representations": {"zs": zs}, "known": {"valid": known}})

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        """Train by the loss of the round; then the class means and the model are kept and sent."""
        net, stage = ctx.net(down["model"]), ctx.round.stage
        if stage == CLASSIFIER:
            train(ctx, net, classification, only=("classifier",))
            return Bundle({"model": ctx.shared(net)}), state
        if stage != EXTRACT:
            self._train(ctx, net, down, state)
        up = self._represented(ctx, net)
        if stage == EXTRACT:
            return up, None
        kept = Bundle({"previous": ctx.weights(net)}) if self._keeps_previous(stage) else None
        return up.replace(model=ctx.shared(net)), kept

    def _represented(self, ctx: ClientContext, net: Network) -> Payload:
        """The class means that are shared; with another negative, also a look at the collapse."""
        if not self._shares and self.negative == "previous":
            return Bundle()
        found = represent(ctx, net)
        ctx.metrics["feature_std"] = found.feature_std
        if not self._shares:
            return Bundle()
        enough = found.counts >= self.min_count
        return Bundle(
            {
                "class_means": {"zs": torch.where(enough[:, None], found.means, 0.0)},
                "class_counts": {"n": torch.where(enough, found.counts, 0)},
            }
        )

    def _keeps_previous(self, stage: str) -> bool:
        used = stage != FEATURES or self.stage1 == "moon+glob"
        return self.mu_moon > 0 and self.negative == "previous" and used

    def _train(
        self, ctx: ClientContext, net: Network, down: Payload, state: ClientState | None
    ) -> None:
        stage = ctx.round.stage
        contrasts = self.mu_moon > 0 and (stage != FEATURES or self.stage1 == "moon+glob")
        models = [down["model"]]
        if contrasts and self.negative == "previous":
            models += [state["previous"]] if state else []
            contrasts = state is not None
        references = ctx.references(models) if contrasts else None
        weight, zs, known = self._shared(ctx, net)
        if stage == FEATURES and not self.local_pairs:
            require_some(known, f"lower method.min_count (now {self.min_count})")

        def loss(net: Network, batch: Batch) -> Loss:
            others = None if references is None else references(batch)
            outputs = net(batch.x)
            z = outputs.z
            terms: Tensors = {}
            notes: Tensors = {}
            if stage != FEATURES:
                terms["class"] = F.cross_entropy(outputs.logits, batch.y)
            if others is not None:
                term, notes = self._contrast(z, batch, others, ctx.native)
                terms["contrast"] = self.mu_moon * term
            if self.local_pairs and weight > 0:
                terms["shared"] = weight * class_pairs(z, batch.y, zs, known, self.tau)
            elif weight > 0:
                terms["shared"] = weight * prototype_contrast(z, batch.y, zs, known, self.tau)
            return Loss.sum(terms, notes)

        train(ctx, net, loss, only=all_but_classifier(net) if stage == FEATURES else ())
        ctx.metrics["mu_glob"] = weight

    def _shared(self, ctx: ClientContext, net: Network) -> tuple[float, Tensor, Tensor]:
        """The weight of the third term in this round, and what was shared with this device."""
        round, device = ctx.round, next(net.parameters()).device
        weight = self.mu_glob
        if weight > 0 and round.stage != FEATURES:
            weight = weight_at(round.step, round.steps, self.hold, weight, self.mu_glob_end)
        if ctx.own is not None:
            zs, known = ctx.own["representations"]["zs"], ctx.own["known"]["valid"]
            return weight, zs.to(device), known.to(device)
        vectors, nobody = nothing_known(net, "zs")
        # pairs within the batch need nothing shared; without them there is no third term yet
        alone = self.local_pairs or round.stage == FEATURES
        return weight if alone else 0.0, vectors["zs"].to(device), nobody["valid"].to(device)

    def _contrast(
        self, z: Tensor, batch: Batch, others: Sequence[Tensor], native: bool
    ) -> tuple[Tensor, Tensors]:
        """MOON's term with the chosen negative, and the cosines for the record."""
        z_glob, *z_prevs = others
        if z_prevs:
            found = model_contrast(z, z_glob, z_prevs, self.tau, native)
            return found.loss, {"cos_glob": found.cos_glob, "cos_prev": found.cos_prev}
        toward = F.cosine_similarity(z, z_glob, dim=-1)
        notes = {"cos_glob": toward.detach().mean()}
        if self.negative == "none":
            return -toward.mean() / self.tau, notes
        stranger, exists = other_class(z_glob, batch.y)
        away = F.cosine_similarity(z, stranger, dim=-1)
        losses = F.softplus((away - toward) / self.tau) * exists
        return losses.sum() / exists.sum().clamp(min=1), notes

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        """Average the models; the pool holds this round's representations."""
        reduced = ctx.reduce(replies)
        if gathered := reduced.gathered.get("class_means"):
            counts = reduced.gathered["class_counts"]
            fresh = {
                "vectors": torch.stack([means["zs"] for means in gathered.values()]),
                "counts": torch.stack([counts[client]["n"] for client in gathered]),
                "clients": torch.tensor(list(gathered), dtype=torch.int64),
            }
            pool = self._with_stale(fresh, server["pool"])
            server = server.replace(pool=pool)
            ctx.metrics["classes_shared"] = float((pool["counts"].sum(dim=0) > 0).sum())
        if "model" not in reduced.groups:
            return server
        moved = ctx.step(server, reduced["model"])
        return only_classifier(server, moved) if ctx.round.stage == CLASSIFIER else moved

    def _with_stale(self, fresh: Tensors, old: Tensors) -> Tensors:
        """This round's pool; for classes that nobody shared, the entries of the last that had."""
        if self.stale == "drop":
            return fresh
        missing = fresh["counts"].sum(dim=0) == 0
        counts = torch.where(missing, old["counts"], 0)
        useful = counts.sum(dim=1) > 0
        older = {**old, "counts": counts}
        return {name: torch.cat([fresh[name], older[name][useful]]) for name in fresh}
