"""Small methods that use what no shipped method needs yet, so that the engine is known to have it.

Workers import this file as `toy_methods`.
"""

import copy
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.task import ClientId, Reply, Round
from coterie.kit import Array, Entry, Gather, Mean, Stage, Sum, stock
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.local import Stepper, train
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.networks import Nets
from coterie.kit.objective import Loss, Objective
from coterie.kit.optimizers import make_optimizer
from coterie.nets.build import Backbone
from coterie.nets.heads import Network, moon_projector


@final
@dataclass(frozen=True)
class Staged(Method):
    """Federated rounds, one upload of representations by all, then rounds on the server alone."""

    objectives = None
    delta: float = 0.0

    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        send = Stage("upload", 1, cohort="all", drop=self.delta, quorum=2, required=True)
        arrays = {"h": Array("float32", ("width",)), "y": Array("int64", (), below="classes")}
        send = replace(send, client=self.encode, server=self.pool, arrays=arrays)
        contrast = Stage("contrast", 2, cohort="none", server=self.contrast)
        return Stage("sense", rounds), send, contrast

    def encode(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        frozen = ctx.frozen(down["model"])
        batches = list(ctx.sweep())
        blobs = {
            "h": ctx.spool("h", (frozen.encode(batch.x).numpy() for batch in batches)),
            "y": ctx.spool("y", (batch.y.numpy() for batch in batches)),
        }
        return Bundle({"model": down["model"]}, blobs=blobs), None

    def pool(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        reduced = ctx.reduce(replies)
        pooled = {
            name: ctx.spool(name, (blobs[name].open() for blobs in reduced.blobs.values()))
            for name in ("h", "y")
        }
        return Bundle(server.tensors, server.scalars, pooled)

    def contrast(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        h, y = (torch.from_numpy(np.array(server.blobs[name].open())) for name in ("h", "y"))
        net = ctx.net(server["model"])
        assert net.projector is not None and net.classifier is not None
        heads = [*net.projector.parameters(), *net.classifier.parameters()]
        optimizer = make_optimizer(ctx.local, heads, 0.05)
        for _ in range(3):
            rows = ctx.generator("rows").permutation(len(y))[:32]
            loss = F.cross_entropy(net.classifier(net.projector(h[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ctx.metrics["loss"] = float(loss.detach())
        return server.replace(model=ctx.weights(net))


_CALLS = Gather(entries={"count": Entry("int64", (), least=0)})


@final
@dataclass(frozen=True)
class Addressed(Method):
    """Prototypes by sum and gather, a draw for every client, a count that the client keeps."""

    reduce: ClassVar = {"model": Mean(), "sums": Sum(like="prototypes"), "calls": _CALLS}
    weight: float = 0.1

    model = stock.global_model

    def init(self, nets: Nets) -> ServerState:
        classifier = nets["model"].classifier
        assert isinstance(classifier, nn.Linear)
        shape = (classifier.out_features, classifier.in_features)
        prototypes = {"vectors": torch.zeros(shape), "counts": torch.zeros(shape[0])}
        return Bundle({"model": nets.weights(), "prototypes": prototypes})

    def broadcast(self, server: ServerState, round: Round) -> Payload:
        return Bundle({"model": server["model"], "prototypes": server["prototypes"]})

    def address(self, server: ServerState, round: Round, client: ClientId) -> Payload | None:
        if client == 0:
            return None
        drawn = float(round.generator("draw", client).random())
        return Bundle({"drawn": {"value": torch.tensor(drawn)}})

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        net = ctx.net(down["model"])
        pull = self.weight * (0.0 if ctx.own is None else float(ctx.own["drawn"]["value"]))
        vectors = down["prototypes"]["vectors"]

        def loss(net: Network, batch: Batch) -> Loss:
            outputs = net(batch.x)
            near = (outputs.z - vectors[batch.y]).pow(2).mean()
            return Loss.sum(
                {"class": F.cross_entropy(outputs.logits, batch.y), "near": pull * near}
            )

        train(ctx, net, loss)
        sums = torch.zeros_like(vectors)
        counts = torch.zeros(len(vectors))
        frozen = ctx.frozen(ctx.shared(net))
        for batch in ctx.sweep():
            sums.index_add_(0, batch.y, frozen(batch).z)
            counts += torch.bincount(batch.y, minlength=len(vectors))
        calls = 1 + (int(state.scalars["calls"]) if state else 0)
        up = Bundle(
            {
                "model": ctx.shared(net),
                "sums": {"vectors": sums, "counts": counts},
                "calls": {"count": torch.tensor(calls)},
            }
        )
        return up, Bundle(scalars={"calls": calls})

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        reduced = ctx.reduce(replies)
        sums = reduced["sums"]
        seen = sums["counts"].clamp(min=1.0)[:, None]
        ctx.metrics["calls"] = float(
            sum(int(calls["count"]) for calls in reduced.gathered["calls"].values())
        )
        prototypes = {"vectors": sums["vectors"] / seen, "counts": sums["counts"]}
        return ctx.step(server, reduced["model"]).replace(prototypes=prototypes)


@final
@dataclass(frozen=True)
class TwoModels(Method):
    """A global model and one that never leaves its client, pulled towards it (as Ditto does)."""

    objectives = None
    pull: float = 0.1

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        received = down["model"]
        net = ctx.net(received)
        own = ctx.net(state["own"] if state else received, slot="own")
        steppers = Stepper(ctx, net), Stepper(ctx, own, hook=self._towards(received), name="own")
        for batch in ctx.batches():
            for stepper in steppers:
                stepper(ctx.objective.loss(stepper.net, batch), batch)
        for stepper in steppers:
            stepper.report()
        return Bundle({"model": ctx.shared(net)}), Bundle({"own": ctx.weights(own)})

    def _towards(self, anchor: Tensors):  # type: ignore[no-untyped-def]
        def hook(net: Network) -> None:
            for name, weight in net.named_parameters():
                if weight.grad is not None and name in anchor:
                    weight.grad.add_(weight.detach() - anchor[name], alpha=self.pull)

        return hook

    def personal(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> Tensors | None:
        return state["own"] if state else None


class TargetNetwork(Network):
    """A network with a copy of its backbone that follows it slowly and is never sent."""

    def __init__(self, backbone: Backbone, target: Backbone, **heads: nn.Module) -> None:
        super().__init__(backbone, **heads)
        self.target = target.requires_grad_(False)


@final
@dataclass(frozen=True)
class Following(Objective):
    """Cross-entropy, and staying near a private target that is an average of the past."""

    private: ClassVar = ("target.",)

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        return TargetNetwork(
            backbone,
            copy.deepcopy(backbone),
            projector=moon_projector(backbone.width, projection),
            classifier=nn.Linear(projection, classes),
        )

    def loss(self, net: Network, batch: Batch) -> Loss:
        assert isinstance(net, TargetNetwork)
        outputs = net(batch.x)
        with torch.no_grad():
            followed: Tensor = net.target(batch.x)
        near = F.mse_loss(outputs.h, followed)
        return Loss.sum({"class": F.cross_entropy(outputs.logits, batch.y), "near": near})

    def after_load(self, net: Network, first: bool) -> None:
        assert isinstance(net, TargetNetwork)
        if first:
            net.target.load_state_dict(net.backbone.state_dict())

    def after_step(self, net: Network, progress: float) -> None:
        assert isinstance(net, TargetNetwork)
        with torch.no_grad():
            for slow, fast in zip(net.target.parameters(), net.backbone.parameters(), strict=True):
                slow.lerp_(fast, 0.1 * (1.0 - progress))

    def after_average(self, weights: Tensors) -> Tensors:
        name = "classifier.weight"
        return {**weights, name: weights[name].clamp(-1.0, 1.0)}


@final
@dataclass(frozen=True)
class FederatedProbe(FederatedEvaluator):
    """A linear classifier on frozen features, trained by federated averaging."""

    rounds: int = 3

    init = stock.start_from_net

    def start(self, nets: Nets, weights: Tensors) -> ServerState:
        width = nets["model"].backbone.width
        classifier = nets["model"].classifier
        assert isinstance(classifier, nn.Linear)
        head = {"weight": torch.zeros(classifier.out_features, int(width))}
        return Bundle({"model": head, "encoder": weights})

    def broadcast(self, server: ServerState, round: Round) -> Payload:
        return server if round.index == 0 else server.without("encoder")

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        if state is None:  # features are computed once an evaluation
            frozen = ctx.frozen(down["encoder"])
            h = torch.cat([frozen.encode(batch.x) for batch in ctx.sweep()])
            state = Bundle({"features": {"h": h, "y": ctx.data.labels}})
        h, y = state["features"]["h"], state["features"]["y"]
        weight = down["model"]["weight"].clone().requires_grad_(True)
        F.cross_entropy(h @ weight.T, y).backward()
        assert weight.grad is not None
        return Bundle({"model": {"weight": weight.detach() - 0.1 * weight.grad}}), state

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        return server.replace(model=ctx.reduce(replies)["model"])

    def model(self, server: ServerState) -> Tensors:
        return server["encoder"]

    def finish(self, ctx: ServerContext, server: ServerState) -> Mapping[str, float]:
        return {"federated_probe_norm": float(server["model"]["weight"].norm())}


@final
@dataclass(frozen=True)
class Faulty(Method):
    """FedAvg with clients whose process dies, or that never answer."""

    fault: str = "none"
    clients: tuple[int, ...] = (1,)

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        if ctx.id in self.clients and self.fault == "die":
            os._exit(7)
        if ctx.id in self.clients and self.fault == "sleep":
            time.sleep(600)
        net = ctx.net(down["model"])
        train(ctx, net, ctx.objective.loss)
        weights = ctx.shared(net)
        return Bundle({"model": weights}), Bundle({"last": weights})
