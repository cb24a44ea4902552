"""A small federation whose parts are asked one call at a time, and training of it by hand."""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core import codec, seeds
from coterie.core.batch import Batch
from coterie.core.bundle import ClientState, Payload, ServerState, Tensors
from coterie.core.settings import ServerSettings
from coterie.core.task import METHOD, Reply, Round
from coterie.data.batches import DataShard
from coterie.engine.client_states import StateStore
from coterie.experiment.config import load
from coterie.experiment.given import divide_sites
from coterie.experiment.own import GIVEN
from coterie.experiment.prepare import prepare
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.kit import Stage
from coterie.kit.context import ClientContext, ServerContext
from coterie.nets.heads import Network

ENTRIES, WIDTH, RATE, ROUNDS = 6, 8, 0.1, 10
COUNTS = ((14, 8, 0), (0, 10, 12), (5, 5, 11))  # samples of each class, by client
CLASSES, SIZES = len(COUNTS[0]), [sum(row) for row in COUNTS]
Tables = dict[str, dict[str, Any]]


UNCHANGED = "coterie.data.augment:Unchanged"  # equal views, which the name "none" would not allow


def shuffle(sites: dict[str, Any]) -> dict[str, Any]:
    """Shuffle the samples of every site, which are sorted by class."""
    shuffled = {}
    for client, (name, (x, y)) in enumerate(sites.items()):
        order = seeds.generator(0, "hold-out", client=client).permutation(len(y))
        shuffled[name] = (x[order], y[order])
    return shuffled


class Answer(NamedTuple):
    """What came of one client's update."""

    up: Payload
    state: ClientState | None
    metrics: dict[str, float]


class Federation:
    """A method on clients whose class counts are known, asked one call at a time."""

    def __init__(
        self,
        folder: Path,
        method: str,
        counts: Sequence[Sequence[int]] = COUNTS,
        tables: Tables | None = None,
        shape: tuple[int, ...] = (ENTRIES,),
        **fields: Any,
    ) -> None:
        base: Tables = {
            "run": {"rounds": ROUNDS, "seed": 3},
            "data": {"name": GIVEN},
            "net": {"backbone": "mlp", "projection": WIDTH, "norm": "none"},
            "method": {"name": method, **fields},
            "local": {"batch_size": 8, "lr": RATE, "momentum": 0.0, "weight_decay": 0.0},
            "executor": {"kind": "serial"},
            "evaluate": {"every": 0, "with": [], "targets": []},
            "checkpoint": {"every": 1, "keep": 99},
        }
        for name, change in (tables or {}).items():
            base[name] = {**base.get(name, {}), **change}
        self.folder, self.config = folder, load(base, {})
        self.given = self._data(counts, shape)
        self.experiment = prepare(self.config, folder, self.given)
        self.parts, self.method = self.experiment.parts, self.experiment.parts.method
        self.nets = self.parts.nets(METHOD)

    def _data(self, counts: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Any:
        random = np.random.default_rng(7)
        centres = 1.5 * random.normal(size=(len(counts[0]), *shape))
        sites = {}
        for client, row in enumerate(counts):
            y = np.repeat(np.arange(len(row)), row)
            x = (centres[y] + random.normal(size=(len(y), *shape))).astype(np.float32)
            sites[f"site-{client}"] = (x, y)
        classes = np.arange(len(counts[0]))
        return divide_sites(shuffle(sites), (centres[classes].astype(np.float32), classes), 0)

    def place(
        self, step: int, rounds: int = ROUNDS, stage: str = "train", before: int = 0
    ) -> Round:
        """Round `step` of a stage that has so many rounds of other stages before it."""
        total, clients = rounds + before, len(self.experiment.partition.clients)
        return Round(before + step, total, stage, step, rounds, clients, self.config.run.seed)

    def start(self) -> ServerState:
        """The server's state before the first round."""
        return self.method.init(self.nets)

    def stage(self, place: Round) -> Stage:
        """The stage of a round, with every function filled in."""
        return self.parts.stage(METHOD, place.stage)

    def broadcast(self, server: ServerState, place: Round) -> Payload:
        """What every client of a round receives."""
        send = self.stage(place).broadcast
        assert send is not None
        return send(server, place)

    def address(self, server: ServerState, place: Round, client: int) -> Payload | None:
        """What one client alone receives."""
        send = self.stage(place).address
        assert send is not None
        return send(server, place, client)

    def shard(self, client: int) -> DataShard:
        """The data of a client."""
        shares = self.experiment.partition
        augment = self.experiment.config.data.augment
        return DataShard(
            self.experiment.dataset, shares.train[client], shares.test[client], augment=augment
        )

    def update(
        self,
        client: int,
        place: Round,
        down: Payload,
        state: ClientState | None = None,
        own: Payload | None = None,
    ) -> Answer:
        """What a site does with a task."""
        ctx = ClientContext(
            id=client,
            round=place,
            own=own,
            data=self.shard(client),
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            draw_fresh=lambda key: self.parts.fresh(METHOD, client, key),
            kept={},
            folder=self.folder,
        )
        with seeds.scoped(place.torch_seed(client)):
            act = self.stage(place).client
            assert act is not None
            up, state = act(ctx, down, state)
        self.nets.release()
        return Answer(up, state, ctx.metrics)

    def collect(
        self, server: ServerState, place: Round, uploads: dict[int, tuple[int, Payload]]
    ) -> ServerState:
        """The server's state after replies of (samples, payload)."""
        ctx = ServerContext(
            round=place,
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            rules=self.stage(place).uploads or {},
            optimizer=ServerSettings(),
            folder=self.folder,
        )
        replies = (Reply(client, up, n) for client, (n, up) in uploads.items())
        act = self.stage(place).server
        assert act is not None
        return act(ctx, server, replies)

    def batches(self, client: int, place: Round) -> Iterator[Batch]:
        """The training batches of a client's round."""
        draw = place.generator
        return self.shard(client).batches(
            self.parts.local, ("train",), lambda what: draw(f"train/{what}", client)
        )

    def network(self, weights: Tensors) -> Network:
        """A network in double precision."""
        net = copy.deepcopy(self.nets["model"])
        net.load_state_dict(weights)
        return net.double()

    def reference(self, weights: Tensors) -> Callable[[Batch], Tensor]:
        """z of a frozen network: eval mode, constants to the gradient."""
        net = self.network(weights).eval()
        return lambda batch: net(batch.x.double()).z.detach()

    def trained(
        self,
        client: int,
        place: Round,
        start: Tensors,
        loss: Callable[[Network, Batch], Tensor],
        parts: tuple[str, ...] = ("backbone", "projector", "classifier"),
    ) -> tuple[Tensors, float]:
        """Plain SGD in double precision by a naive loss; and the mean loss over samples."""
        net = self.network(start)
        for name, part in net.named_children():
            part.train(name in parts)
        moved = [p for name, p in net.named_parameters() if name.startswith(parts)]
        total, samples = 0.0, 0
        for batch in self.batches(client, place):
            value = loss(net, batch)
            slopes = torch.autograd.grad(value, moved, allow_unused=True)
            with torch.no_grad():
                for weight, slope in zip(moved, slopes, strict=True):
                    if slope is not None:
                        weight -= RATE * slope
            total += float(value.detach()) * len(batch)
            samples += len(batch)
        return net.state_dict(), total / samples

    def run(self) -> Result:
        """The whole run."""
        return execute(self.config, self.folder, given=self.given)

    def servers(self) -> list[ServerState]:
        """The server's state after every round of the run."""
        folders = sorted((self.folder / "checkpoints").glob("round_*"))
        return [codec.decode((folder / "server.safetensors").read_bytes()) for folder in folders]

    def state(self, client: int, after: int) -> ClientState | None:
        """A client's state after a round of the run."""
        return StateStore(self.folder / "clients").load(client, below=after + 1)


def fedavg(folder: Path, tables: Tables | None = None) -> Federation:
    return Federation(folder, "fedavg", tables=tables)


def assert_near(found: Tensors, expected: Tensors, atol: float = 2e-6) -> None:
    assert set(found) == set(expected)
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=atol, err_msg=name)


def same(one: Tensors, other: Tensors, prefix: str = "") -> bool:
    """Whether two sets of weights have the same bits."""
    assert set(one) == set(other)
    names = [name for name in one if name.startswith(prefix)]
    assert names
    return all(torch.equal(one[name], other[name]) for name in names)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / ((a @ a).sqrt() * (b @ b).sqrt())


def contrast(z: Tensor, z_glob: Tensor, z_prevs: Sequence[Tensor], tau: float) -> Tensor:
    """-log e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + sum_b e^{cos(z, z_prev_b)/tau})."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(z)):
        near = (cosine(z[i], z_glob[i]) / tau).exp()
        far = [(cosine(z[i], z_prev[i]) / tau).exp() for z_prev in z_prevs]
        total = total - (near / (near + torch.stack(far).sum())).log()
    return total / len(z)


def others(fed: Federation, *clients: int) -> list[Tensors]:
    """Weights that are far from the global ones."""
    return [fed.parts.fresh(METHOD, client, "model") for client in clients]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()
