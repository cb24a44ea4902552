"""Orchestra: unsupervised learning by globally consistent clusters (Lubana et al., ICML 2022).

Clients hold their representations near centroids C of the whole federation. A local step, with a
target network that follows the online one, and views x1, x2 of the same samples, is

    target = m target + (1 - m) online
    t = target(x1) / |target(x1)|,     o = online(x2) / |online(x2)|
    loss   = -mean sum_k softmax(C t / T)_k log softmax(C o / T)_k + CE(turn of a third view)

and t goes into the client's memory, first in, first out. After training a client sends online,
target and the centroids of clusters of equal size in its memory. The server averages the networks
and fits C to all clients' centroids Z, each row of C at length one after every step, by

    -mean_i cos( Sinkhorn(softmax(lambda Z_i C^T)), softmax(Z_i C^T / T) )

from the C of the round before. The first round, of all clients, trains nothing: they fill their
memories with the initial target and send centroids only.

Settled here: C starts from directions drawn evenly, as many as `clusters` or as centroids arrive
first, if these are fewer; until they do, the turns are learned alone. A client that comes for the
first time fills its memory before it trains. Filling uses the statistics of each batch and changes
none. The networks are averaged by samples, the authors' code counts batches. Their code also passes
x1 through the online network and uses nothing of it, which feeds its BatchNorm statistics; here x1
goes through the target alone.
"""

import copy
import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie import kit
from coterie.kit import Answer, Bundle, ClientContext, Method, Network, State, clustering, fields

FIRST = ("train",)
_CENTROIDS = kit.Gather(entries={"c": kit.Entry("float32", ("local_clusters", "projection"))})


@torch.no_grad()
def push(memory: Tensor, rows: Tensor) -> Tensor:
    """The memory with rows at its end and as many less at its front."""
    return torch.cat([memory, rows.cpu()])[-len(memory) :]


def consistency(t: Tensor, o: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """-mean sum_k softmax(C t / T)_k log softmax(C o / T)_k; t and C are constants."""
    goals = F.softmax(t.detach() @ centroids.T / temperature, dim=1)
    return F.cross_entropy(o @ centroids.T / temperature, goals)


@final
@dataclass(frozen=True)
class Orchestra(Method):
    """Local learning towards clusters that all clients share. Takes no labels."""

    clusters: fields.Width = 128  # of the federation, at most
    local_clusters: fields.Width = 16  # of a client's memory
    memory: fields.Width = 128  # representations that a client keeps
    temperature: fields.Positive = 0.1  # T
    ema: fields.Decay = 0.996  # m of the target
    sinkhorn_lambda: fields.Positive = 25.0
    sinkhorn_iterations: fields.PositiveCount = 10  # on a client, at most
    server_sinkhorn_iterations: fields.PositiveCount = 100  # on the server, at most
    local_iterations: fields.PositiveCount = 5  # of the clustering of a memory
    server_steps: fields.Count = 500
    server_lr: fields.Positive = 0.01
    server_momentum: fields.Decay = 0.9
    server_weight_decay: fields.NonNegative = 1e-4

    objectives = ("rotation",)
    views = ("train", "second", "train")  # the last one is turned
    reduce: ClassVar = {"model": kit.Mean(), "target": kit.Mean(), "local_centroids": _CENTROIDS}
    leaves: ClassVar[str] = (
        "weights of its network and of a slower copy, centroids of its representations, and its "
        "number of samples"
    )

    model = kit.stock.global_model

    def __post_init__(self) -> None:
        if self.local_clusters > self.memory:
            raise kit.ConfigError(
                f"method.local_clusters = {self.local_clusters} of orchestra needs a method.memory "
                f"of at least as many, not {self.memory}"
            )

    def stages(self, rounds: int) -> tuple[kit.Stage, ...]:
        """Clusters first, from everybody; then training."""
        centroids = {"local_centroids": _CENTROIDS}
        clusters = kit.Stage("cluster", 1, "all", broadcast=self.send_target, client=self.cluster)
        return replace(clusters, uploads=centroids), kit.Stage("train", rounds)

    def nets(self, build: kit.Builder) -> dict[str, Network]:
        """The online network, and the target: a copy of its backbone and projector."""
        online = build()
        target = Network(copy.deepcopy(online.backbone), projector=copy.deepcopy(online.projector))
        return {"model": online, "target": target.requires_grad_(False)}

    def init(self, nets: kit.Nets) -> Bundle:
        """Both networks, and no centroid."""
        return Bundle({"model": nets.weights(), "target": nets.weights("target")})

    def broadcast(self, server: Bundle, round: kit.Round) -> Bundle:
        """The networks and C, if there is one."""
        wanted = ("model", "target", "centroids")
        return Bundle({group: server[group] for group in wanted if group in server})

    def send_target(self, server: Bundle, round: kit.Round) -> Bundle:
        """The target alone, for the first clusters."""
        return Bundle({"target": server["target"]})

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Train towards C, then cluster the memory."""
        memory = self._memory(ctx, down, state)
        online, target = ctx.net(down["model"]), ctx.net(down["target"], key="target")
        stepper = kit.Stepper(ctx, online)
        begin = True  # of a step, which may take several batches
        for batch in ctx.batches(views=self.views):
            if begin:
                kit.follow(target, online, self.ema)
            with torch.no_grad():
                t = F.normalize(target(batch.x).z, dim=1)
            begin = stepper(self._loss(ctx, online, batch, t, down), batch)
            memory = push(memory, t)
        stepper.report()
        sent = {"model": ctx.shared(online), "target": ctx.shared(target)}
        return Bundle({**sent, **self._clusters(ctx, memory)}), Bundle({"memory": {"z": memory}})

    def cluster(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Fill the memory and cluster it; nothing is trained."""
        memory = self._memory(ctx, down, state)
        return Bundle(self._clusters(ctx, memory)), Bundle({"memory": {"z": memory}})

    def _clusters(self, ctx: ClientContext, memory: Tensor) -> dict[str, kit.Tensors]:
        """The centroids of a memory, as they are sent."""
        draws, iterations = ctx.generator("local-clusters"), self.local_iterations
        shares = clustering.EqualShares(self.sinkhorn_lambda, self.sinkhorn_iterations)
        count = self.local_clusters
        centroids = clustering.cluster(memory, count, shares, iterations, draws)
        return {"local_centroids": {"c": centroids}}

    def _memory(self, ctx: ClientContext, down: Bundle, state: State) -> Tensor:
        """The client's memory; a first one is filled by the target as received.

        Few samples are represented in several views each.
        """
        if state:
            return state["memory"]["z"]
        net = ctx.net(down["target"], key="target", slot="fill")  # its statistics are not kept
        epochs = math.ceil(self.memory / len(ctx.data))
        local = replace(ctx.local, epochs=epochs, steps=0, accumulate=1, drop_last=False)
        rows: list[Tensor] = []
        for batch in ctx.batches("fill", views=FIRST, local=local):
            with torch.no_grad():
                rows.append(F.normalize(net(batch.x).z, dim=1).cpu())
            if sum(map(len, rows)) >= self.memory:
                break
        return torch.cat(rows)[: self.memory]

    def _loss(
        self, ctx: ClientContext, online: Network, batch: kit.Batch, t: Tensor, down: Bundle
    ) -> kit.Loss:
        o = F.normalize(online(batch.views[1]).z, dim=1)
        turned = ctx.objective.loss(online, replace(batch, views=batch.views[2:]))
        terms = {"rotation": turned.total}
        if "centroids" in down:
            centroids = down["centroids"]["c"].to(o.device)
            terms["cluster"] = consistency(t, o, centroids, self.temperature)
        return kit.Loss.sum(terms, {**turned.notes, **kit.self_supervised.geometry(o, t)})

    def server_update(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Average both networks, then fit C to the clients' centroids."""
        reduced = ctx.reduce(replies)
        for key in ("model", "target"):
            if key in reduced.groups:
                server = ctx.step(server, reduced[key], key)
        sent = reduced.gathered["local_centroids"].values()
        rows = clustering.directed(torch.cat([tensors["c"] for tensors in sent]))
        if not len(rows):
            return server
        start = server.get("centroids").get("c")
        if start is None:
            count = min(self.clusters, len(rows))
            start = clustering.directions(count, rows.shape[1], ctx.generator("centroids"))
        momentum, decay = self.server_momentum, self.server_weight_decay
        fit = clustering.Descent(self.server_steps, self.server_lr, momentum, decay)
        shares = clustering.EqualShares(self.sinkhorn_lambda, self.server_sinkhorn_iterations)
        fitted = fit(rows, start, shares, self.temperature)
        nearest = (rows @ fitted.T).argmax(dim=1)
        left = clustering.disagreement(rows, fitted, shares, self.temperature)
        ctx.metrics["cluster_loss"] = float(left)
        ctx.metrics["clusters_used"] = float((torch.bincount(nearest) > 0).sum())
        return server.replace(centroids={"c": fitted})
