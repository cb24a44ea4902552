"""What a method may touch: `ClientContext` on a client, `ServerContext` on the server."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from coterie.core.batch import Batch
from coterie.core.bundle import Blob, Payload, ServerState, Tensors
from coterie.core.settings import Local, ServerSettings
from coterie.core.task import ClientId, Reply, Round
from coterie.kit import aggregate
from coterie.kit.aggregate import Reduced
from coterie.kit.networks import Frozen, Nets, References
from coterie.kit.objective import Objective
from coterie.kit.rules import Rules
from coterie.kit.server_optimizer import step_server
from coterie.nets.heads import Network


class Shard(Protocol):
    """A client's own data."""

    classes: int

    def __len__(self) -> int:
        """The number of training samples."""

    @property
    def labels(self) -> Tensor:
        """The training labels, by position in the shard."""

    def labelled(self) -> "Shard":
        """The same data without samples that have no label (-1)."""

    def batches(
        self, local: Local, views: tuple[str, ...], draw: Callable[[str], np.random.Generator]
    ) -> Iterator[Batch]:
        """The training batches of one round, shuffled anew in every epoch."""

    def sweep(self, batch_size: int = 256, test: bool = False) -> Iterator[Batch]:
        """All training (or test) samples in order, with the test transform."""


@dataclass(kw_only=True, eq=False)
class _Context:
    """What both sides of a method may touch."""

    round: Round
    objective: Objective
    local: Local
    nets: Nets
    folder: Path  # of the files that `spool` writes
    metrics: dict[str, float] = field(default_factory=dict)

    def spool(self, name: str, rows: Iterable[np.ndarray]) -> Blob:
        """Write a big array as a file that travels, or is kept in a state, as a blob."""
        return Blob.write(self.folder / name, rows)


@dataclass(kw_only=True, eq=False)
class ClientContext(_Context):
    """All that a client's part of a method may touch."""

    id: ClientId
    own: Payload | None
    data: Shard
    draw_fresh: Callable[[str], Tensors]
    kept: Mapping[str, Tensors]  # "key:slot" -> the names of a network that never leave the client
    keeps: dict[str, Tensors] = field(default_factory=dict)  # the same, after this round
    _lent: dict[int, tuple[str, str]] = field(default_factory=dict, init=False)

    def net(self, weights: Tensors, key: str = "model", slot: str = "local") -> Network:
        """A scratch network with these weights, in training mode; another slot: a second one."""
        place = f"{key}:{slot}"
        net = self.nets.net(key, slot, weights, self.kept.get(place, {}))
        self._lent[id(net)] = (key, slot)
        first = place not in self.kept and not self.nets.complete(key, weights)
        self.objective.after_load(net, first)
        return net

    def frozen(self, weights: Tensors, key: str = "model", slot: str = "local") -> Frozen:
        """A reference network: eval mode, no gradients; any number of them at once."""
        local, samples = self.local, len(self.data)
        seen = local.steps * local.accumulate * local.batch_size  # of a round counted in steps
        whole = local.steps == 0 or seen >= samples  # else most of a table would be for nothing
        kept = self.kept.get(f"{key}:{slot}", {})
        return self.nets.frozen(key, weights, kept, self.data.sweep if whole else None)

    def references(self, models: Sequence[Tensors]) -> References:
        """Reference networks that are asked for z of the same batches."""
        return References([self.frozen(weights) for weights in models])

    def fresh(self, key: str = "model") -> Tensors:
        """Weights of this client's own initialisation, the same in every round."""
        return self.draw_fresh(key)

    def initial(self, key: str = "model") -> Tensors:
        """The weights that the run began with, the same for everybody."""
        return self.nets.weights(key)

    def shared(self, net: Network) -> Tensors:
        """Copies of the weights that may be sent; the site keeps the rest for the next round."""
        key, slot = self._lent[id(net)]
        shared, kept = self.nets.split(key, net)
        self.keep(kept, key, slot)
        return shared

    def keep(self, tensors: Tensors, key: str = "model", slot: str = "local") -> None:
        """Also keep local BatchNorm statistics for a network that shares layers with this one."""
        if tensors:
            self.keeps[f"{key}:{slot}"] = tensors

    def weights(self, net: Network) -> Tensors:
        """Copies of all weights, for a state of this client: nothing of them may be sent."""
        shared, kept = self.nets.split(self._lent[id(net)][0], net)
        return {**shared, **kept}

    def batches(
        self, stream: str = "train", *, views: tuple[str, ...] = (), local: Local | None = None
    ) -> Iterator[Batch]:
        """This round's training batches; another stream draws others, from the same samples."""
        views = views or self.objective.views
        return self.data.batches(
            local or self.local, views, lambda what: self.generator(f"{stream}/{what}")
        )

    def sweep(self, test: bool = False) -> Iterator[Batch]:
        """All training (or test) samples in order, with the test transform."""
        return self.data.sweep(test=test)

    def generator(self, purpose: str) -> np.random.Generator:
        """A generator for this client, round and purpose."""
        return self.round.generator(purpose, self.id)


@dataclass(kw_only=True, eq=False)
class ServerContext(_Context):
    """All that the server's part of a method may touch."""

    rules: Rules
    optimizer: ServerSettings

    def net(self, weights: Tensors, key: str = "model", slot: str = "local") -> Network:
        """A scratch network with these weights, in training mode."""
        return self.nets.net(key, slot, weights, {})

    def frozen(self, weights: Tensors, key: str = "model") -> Frozen:
        """A reference network; without shared BatchNorm statistics it uses each batch's own."""
        return self.nets.frozen_on_server(key, weights)

    def weights(self, net: Network, key: str = "model") -> Tensors:
        """Copies of the weights of a network that the server trained."""
        return self.nets.split(key, net)[0]

    def reduce(self, replies: Iterator[Reply]) -> Reduced:
        """Reduce the replies by the rules of the stage; raises `NoReplies` if there is none."""
        return aggregate.reduce(replies, self.rules)

    def step(self, server: ServerState, averaged: Tensors, key: str = "model") -> ServerState:
        """Move the group `key` of the state by the server optimiser."""
        moved = step_server(self.optimizer, server, averaged, self.nets.parameters(key), key)
        return moved.replace(**{key: self.objective.after_average(moved[key])})

    def generator(self, purpose: str) -> np.random.Generator:
        """A generator for the server in this round."""
        return self.round.generator(purpose)
