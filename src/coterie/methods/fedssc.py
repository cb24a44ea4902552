"""FedSSC: shared supervised-contrastive federated learning (Hu et al., 2023).

MOON's loss with a third term: z is pulled towards the representation of its class that a device
shared, and away from those of the other classes:

    loss   = CE + mu_moon l_moon + mu_glob(t) l_glob
    l_glob = -log( e^{cos(z, zs_y)/tau_glob} / sum_k e^{cos(z, zs_k)/tau_glob} )
    zs_k   = the mean of k_shared devices' class means, drawn anew in every round, for all devices
    mu_glob(t) = mu_glob while t < hold, then linearly down to mu_glob_end at t = T

After its last epoch a device sends the mean of z of every class that it has `min_count` samples of.

The paper contradicts itself or is silent, and is settled here: one draw a round serves all devices
(Section III, Algorithm 1), since devices that are pulled to different vectors move apart. V-B's
vectors "to a device" are `shared_draw = false`: a draw for each device, from the others unless
`exclude_self` is false (its own where nobody else has the class). Algorithm 1's mean over all
devices is `k_shared = "all"`, over owners. mu_glob's printed formula has no round in it; its
"warmup rounds" hold the weight, or `warmup` says otherwise. The first round has no zs and is
FedAvg's, unless `init_with = "extract"` puts a round of extraction before it. A class that nobody
shares keeps what was last shared (`stale`), or has no part in the softmax. tau is not given: MOON's
0.5 in both terms. `negative` changes the pair that l_moon pushes from (Section IV): the global
model's z of the next sample of another class in the batch, or nothing, -cos(z, z_glob)/tau.
`two_stage` (Figure 2): first the contrastive terms with the output layer frozen and mu_glob
constant, then CE on the output layer. `local_pairs`: pairs within the batch join those with zs. No
code was published.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional as F

from coterie import kit
from coterie.kit import Bundle, ClientContext, Loss, Method, State, Tensors, fields, losses, stock

_VECTORS: kit.Rules = {
    "class_means": kit.Gather(entries={"zs": kit.Entry("float32", ("classes", "projection"))}),
    "class_counts": kit.Gather(entries={"n": kit.Entry("int64", ("classes",), least=0)}),
}

All = Literal["all"]
Warmup = Literal["hold", "ramp", "off"]


def weight_at(step: int, steps: int, warmup: Warmup, hold: int, start: float, end: float) -> float:
    """mu_glob(t): from `start` at t = T0 linearly to `end` at t = T.

    While t < T0 it is held at `start`, or rises by start / T0 a round; "off" is T0 = 0.
    """
    held = 0 if warmup == "off" else hold
    if step < held and warmup == "ramp":
        return start * (step + 1) / held
    if step < held or steps <= held:
        return start
    return start - (step - held) / (steps - held) * (start - end)


def draw(
    pool: Tensors, client: kit.ClientId | None, k: int | All, draws: Generator, others: bool
) -> tuple[Tensor, Tensor]:
    """For every class the mean of k pool entries, and which classes have one.

    The pool has `vectors` (entries, classes, width), `counts` that say which of them are shared,
    and `clients` whose they are. Where there are fewer than k entries all are averaged. `others`
    leaves the receiver's own out, unless it is the only one; `all` takes everybody's.
    """
    vectors, counts, clients = pool["vectors"], pool["counts"], pool["clients"]
    classes, width = vectors.shape[1:]
    zs, known = torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool)
    for label in range(classes):
        shared = torch.nonzero(counts[:, label] > 0).flatten()
        theirs = shared
        if others and client is not None and k != "all":
            theirs = shared[clients[shared] != client]
        usable = (theirs if len(theirs) else shared).numpy()
        wanted = len(usable) if k == "all" else min(k, len(usable))
        if wanted:
            chosen = usable if wanted == len(usable) else draws.choice(usable, wanted, False)
            zs[label] = vectors[torch.from_numpy(np.sort(chosen)), label].mean(dim=0)
            known[label] = True
    return zs, known


def other_class(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For every sample the z of the next one in the batch of another class; and where none is."""
    size = len(y)
    steps = torch.arange(size, device=y.device)
    ahead = (steps[:, None] + steps) % size
    differs = y[ahead] != y[:, None]
    chosen = ahead.gather(1, differs.to(torch.int64).argmax(dim=1, keepdim=True)).squeeze(1)
    return z[chosen], differs.any(dim=1)


@final
@dataclass(frozen=True)
class FedSSC(Method):
    """MOON with class representations that devices share."""

    mu_moon: fields.NonNegative = 5.0  # weight of MOON's term
    mu_glob: fields.NonNegative = 1.0  # weight of the shared representations, at the start
    mu_glob_end: fields.NonNegative = 1e-4  # and at the end
    hold: fields.Count = 5  # T0, the rounds before the weight falls
    warmup: Warmup = "hold"  # what the weight does in them; off: it falls from the first round on
    tau: fields.Positive = 0.5  # temperature of both terms
    tau_glob: fields.Positive | None = None  # of the shared representations' own; none: tau
    k_shared: fields.Count | All = 1  # devices whose representation of a class is averaged; 0: none
    min_count: fields.PositiveCount = 10  # samples of a class that a device needs to share it
    shared_draw: bool = True  # one draw for all devices; false: one for each
    exclude_self: bool | None = None  # from its own draw; none: where each device has one
    stale: Literal["keep", "drop"] = "keep"
    init_with: Literal["none", "extract"] = "none"
    negative: Literal["previous", "other_class", "none"] = "previous"
    two_stage: bool = False
    stage1: Literal["glob", "moon+glob"] = "glob"
    stage1_fraction: fields.Share = 0.9
    local_pairs: bool = False

    reduce: ClassVar = {"model": kit.Mean(), **_VECTORS}
    leaves: ClassVar[str] = (
        "weights, the mean representation and the number of samples of every class that it has "
        "method.min_count samples of"
    )

    broadcast = stock.send_model
    model = stock.global_model
    train_head = stock.train_classifier
    move_head = stock.average_classifier

    def __post_init__(self) -> None:
        nothing = self.mu_glob == 0 or (self.k_shared == 0 and not self.local_pairs)
        if not self.two_stage and (self.stage1, self.stage1_fraction) != ("glob", 0.9):
            raise kit.ConfigError("method.stage1 and stage1_fraction of fedssc need two_stage=true")
        if self.shared_draw and self.exclude_self:
            raise kit.ConfigError(
                "method.exclude_self = true of fedssc needs a draw for each device: "
                "method.shared_draw = false"
            )
        if self.two_stage and nothing:
            raise kit.ConfigError(
                "method.two_stage = true of fedssc trains the representation by what is shared: "
                "method.mu_glob and method.k_shared must be above 0"
            )

    def stages(self, rounds: int) -> tuple[kit.Stage, ...]:
        """One stretch of training; what needs representations from the start extracts them."""
        means = _VECTORS if self._shares else {}
        extract = kit.Stage("extract", 1, client=self.extract, uploads=means)
        both = {"model": kit.Mean(), **means}
        training = kit.Stage("train", rounds, client=self.train, uploads=both)
        training = replace(training, address=self.draw_for)
        if not self.two_stage:
            return (extract, training) if means and self.init_with == "extract" else (training,)
        first, second = kit.split(rounds, self.stage1_fraction)
        features = replace(training, name="features", rounds=first, client=self.train_features)
        head = kit.Stage("classifier", second, client=self.train_head, server=self.move_head)
        head = replace(head, uploads={"model": kit.Mean()})
        return kit.trim(extract if means else None, features, head)

    @property
    def _shares(self) -> bool:
        return self.mu_glob > 0 and self.k_shared != 0

    def init(self, nets: kit.Nets) -> Bundle:
        """The network, and an empty pool."""
        vectors = kit.prototypes.nothing_known(nets["model"], "zs")[0]["zs"]
        pool = {
            "vectors": torch.zeros(0, *vectors.shape),
            "counts": torch.zeros(0, len(vectors), dtype=torch.int64),
            "clients": torch.zeros(0, dtype=torch.int64),
        }
        return Bundle({"model": nets.weights(), "pool": pool})

    def draw_for(self, server: Bundle, round: kit.Round, client: kit.ClientId) -> Bundle | None:
        """The representations drawn for a device, or for all; nothing before any were shared."""
        pool = server["pool"]
        if not (self._shares and len(pool["clients"])):
            return None
        receiver = None if self.shared_draw else client
        draws = round.generator("share", receiver)
        zs, known = draw(pool, receiver, self.k_shared, draws, self.exclude_self is not False)
        return Bundle({"representations": {"zs": zs}, "known": {"valid": known}})

    def extract(self, ctx: ClientContext, down: Bundle, state: State) -> kit.Answer:
        """Send the class means under the received model."""
        return self._represented(ctx, ctx.net(down["model"])), None

    def train(self, ctx: ClientContext, down: Bundle, state: State) -> kit.Answer:
        """Train by CE and both contrastive terms; send model and class means."""
        net, round, weight = ctx.net(down["model"]), ctx.round, self.mu_glob
        if weight > 0:
            schedule = self.warmup, self.hold, self.mu_glob, self.mu_glob_end
            weight = weight_at(round.step, round.steps, *schedule)
        if ctx.own is None and not self.local_pairs:
            weight = 0.0  # nobody has shared anything yet
        references = self._references(ctx, down, state)
        self._descend(ctx, net, self._received(ctx, net), references, weight)
        return self._answer(ctx, net, self._keeps_previous)

    def train_features(self, ctx: ClientContext, down: Bundle, state: State) -> kit.Answer:
        """Train all but the output layer by the contrastive terms, at a constant weight."""
        net, contrasts = ctx.net(down["model"]), self.stage1 == "moon+glob"
        zs, known = self._received(ctx, net)
        if not self.local_pairs:
            kit.prototypes.require_some(known, f"lower method.min_count (now {self.min_count})")
        references = self._references(ctx, down, state) if contrasts else None
        only = kit.prototypes.all_but_classifier(net)
        self._descend(ctx, net, (zs, known), references, self.mu_glob, only)
        return self._answer(ctx, net, contrasts and self._keeps_previous)

    @property
    def _keeps_previous(self) -> bool:
        return self.mu_moon > 0 and self.negative == "previous"

    def _answer(self, ctx: ClientContext, net: kit.Network, keep: bool) -> kit.Answer:
        """What a trained device sends, and the model that it keeps as its previous one."""
        kept = Bundle({"previous": ctx.weights(net)}) if keep else None
        return self._represented(ctx, net).replace(model=ctx.shared(net)), kept

    def _represented(self, ctx: ClientContext, net: kit.Network) -> Bundle:
        """The class means that are shared; with another negative, also a look at the collapse."""
        if not self._shares and self.negative == "previous":
            return Bundle()
        classes = kit.prototypes.represent(ctx, net)
        ctx.metrics["feature_std"] = classes.feature_std
        if not self._shares:
            return Bundle()
        enough = classes.counts >= self.min_count
        means = torch.where(enough[:, None], classes.means, 0.0)
        counts = torch.where(enough, classes.counts, 0)
        return Bundle({"class_means": {"zs": means}, "class_counts": {"n": counts}})

    def _references(self, ctx: ClientContext, down: Bundle, state: State) -> kit.References | None:
        """The networks that MOON's term compares with; None where the term has no part."""
        if self.mu_moon == 0 or (self.negative == "previous" and state is None):
            return None
        previous = [state["previous"]] if self.negative == "previous" and state else []
        return ctx.references([down["model"], *previous])

    def _received(self, ctx: ClientContext, net: kit.Network) -> tuple[Tensor, Tensor]:
        """zs and which classes have one; none where nothing was shared with this device."""
        device = next(net.parameters()).device
        if ctx.own is not None:
            zs, known = ctx.own["representations"]["zs"], ctx.own["known"]["valid"]
        else:
            vectors, nobody = kit.prototypes.nothing_known(net, "zs")
            zs, known = vectors["zs"], nobody["valid"]
        return zs.to(device), known.to(device)

    def _descend(
        self,
        ctx: ClientContext,
        net: kit.Network,
        shared: tuple[Tensor, Tensor],
        references: kit.References | None,
        weight: float,
        only: tuple[str, ...] = (),
    ) -> None:
        """Train by the contrastive terms that have a part, and by CE unless parts are frozen."""
        tau = self.tau if self.tau_glob is None else self.tau_glob

        def loss(net: kit.Network, batch: kit.Batch) -> Loss:
            others = None if references is None else references(batch)
            outputs, y = net(batch.x), batch.y
            terms: Tensors = {} if only else {"class": F.cross_entropy(outputs.logits, y)}
            notes: Tensors = {}
            if others is not None:
                term, notes = self._contrast(outputs.z, y, others)
                terms["contrast"] = self.mu_moon * term
            if weight > 0:
                pairs = losses.class_pairs if self.local_pairs else losses.prototype_contrast
                terms["shared"] = weight * pairs(outputs.z, y, *shared, tau)
            return Loss.sum(terms, notes)

        kit.train(ctx, net, loss, only=only)
        ctx.metrics["mu_glob"] = weight

    def _contrast(self, z: Tensor, y: Tensor, others: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        """MOON's term with the chosen negative, and the cosines for the record."""
        z_glob, *z_prevs = others
        if z_prevs:
            term = losses.model_contrast(z, z_glob, z_prevs, self.tau)
            return term.loss, {"cos_glob": term.cos_glob, "cos_prev": term.cos_prev}
        toward = F.cosine_similarity(z, z_glob, dim=-1)
        notes = {"cos_glob": toward.detach().mean()}
        if self.negative == "none":
            return -toward.mean() / self.tau, notes
        stranger, exists = other_class(z_glob, y)
        away = F.cosine_similarity(z, stranger, dim=-1)
        gaps = F.softplus((away - toward) / self.tau) * exists
        return gaps.sum() / exists.sum().clamp(min=1), notes

    def server_update(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """The pool holds this round's representations; average the models, if sent."""
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
        return ctx.step(server, reduced["model"]) if "model" in reduced.groups else server

    def _with_stale(self, fresh: Tensors, old: Tensors) -> Tensors:
        """This round's pool; for classes that nobody shared, the entries of the last that had."""
        if self.stale == "drop":
            return fresh
        missing = fresh["counts"].sum(dim=0) == 0
        counts = torch.where(missing, old["counts"], 0)
        useful = counts.sum(dim=1) > 0
        older = {**old, "counts": counts}
        return {name: torch.cat([fresh[name], older[name][useful]]) for name in fresh}
