"""Three clients with small images of bytes, on which MFCL is asked one call at a time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import COUNTS, Federation, shuffle
from torch import Tensor

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload, ServerState, Tensors
from coterie.core.settings import ServerSettings
from coterie.core.task import METHOD, Reply, Round
from coterie.experiment.given import divide_sites
from coterie.kit.context import ClientContext, ServerContext

SIZES = [sum(row) for row in COUNTS]
SENSE = 2
TABLES: dict[str, dict[str, Any]] = {
    "run": {"rounds": 3},
    "data": {"augment": "resized-crop"},
    "net": {"norm": "bn"},
    "objective": {"name": "simclr", "tau": 0.3, "hidden": 16, "layers": 3},
    "local": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.0},
}


class Modular(Federation):
    """Images of 9 x 9 bytes; `context` and `server` give what the engine would give."""

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        shape: tuple[int, ...] = (1, 9, 9),
        **fields: Any,
    ) -> None:
        base = {name: dict(table) for name, table in TABLES.items()}
        for name, change in (tables or {}).items():
            base[name] = dict(change) if "name" in change else {**base.get(name, {}), **change}
        small = {"sense_rounds": SENSE, "sensor_width": 4, "server_batch": 16, "server_warmup": 1}
        chosen = {"share_representations": True, **small, **fields}
        super().__init__(folder, "mfcl", tables=base, shape=shape, **chosen)

    def _data(self, counts: Any, shape: tuple[int, ...]) -> Any:
        random = np.random.default_rng(7)
        centres = random.integers(0, 256, size=(len(counts[0]), *shape))
        sites = {}
        for client, row in enumerate(counts):
            y = np.repeat(np.arange(len(row)), row)
            x = centres[y] + random.integers(-40, 40, size=(len(y), *shape))
            sites[f"site-{client}"] = (x.clip(0, 255).astype(np.uint8), y)
        classes = np.arange(len(counts[0]))
        return divide_sites(shuffle(sites), (centres[classes].astype(np.uint8), classes), 0)

    def at(self, stage: str, step: int = 0) -> Round:
        """A round of a stage, of a run that sends once."""
        rounds = {"sense": SENSE, "upload": 1, "contrast": self.config.run.rounds}
        before = {"sense": 0, "upload": SENSE, "contrast": SENSE + 1}[stage]
        total, clients = sum(rounds.values()), len(self.experiment.partition.clients)
        return Round(before + step, total, stage, step, rounds[stage], clients, 3)

    def context(
        self, client: int, place: Round, kept: Mapping[str, Tensors] | None = None
    ) -> ClientContext:
        return ClientContext(
            id=client,
            round=place,
            own=None,
            data=self.shard(client),
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            draw_fresh=lambda key: self.parts.fresh(METHOD, client, key),
            kept=kept or {},
            folder=self.folder / f"{place.index}-{client}",
        )

    def answer(
        self, client: int, place: Round, server: ServerState, kept: Any = None
    ) -> tuple[Payload, ClientContext]:
        """What a client sends, and its context with what is kept for it."""
        ctx = self.context(client, place, kept)
        with seeds.scoped(place.torch_seed(client)):
            act = self.stage(place).client
            assert act is not None
            up, _ = act(ctx, self.broadcast(server, place), None)
        self.nets.release()
        return up, ctx

    def after(
        self, place: Round, server: ServerState, uploads: Mapping[int, Payload] | None = None
    ) -> tuple[ServerState, dict[str, float]]:
        """The server's state after a round, and what it recorded."""
        ctx = ServerContext(
            round=place,
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            rules=self.stage(place).uploads or {},
            optimizer=ServerSettings(),
            folder=self.folder / "server",
        )
        replies = (Reply(client, up, SIZES[client]) for client, up in (uploads or {}).items())
        with seeds.scoped(place.torch_seed()):
            act = self.stage(place).server
            assert act is not None
            server = act(ctx, server, replies)
        self.nets.release()
        return server, ctx.metrics

    def uploaded(self, server: ServerState | None = None) -> ServerState:
        """The server's state once all clients have sent their representations."""
        server, place = server or self.start(), self.at("upload")
        uploads = {client: self.answer(client, place, server)[0] for client in range(len(SIZES))}
        return self.after(place, server, uploads)[0]

    def images(self, client: int, count: int = 6) -> Tensor:
        """Some images of a client, as networks see them."""
        return next(self.shard(client).sweep()).x[:count]


def sensor_of(weights: Tensors) -> Bundle:
    return Bundle({"sensor": weights})


def pairs_of(up: Payload) -> Tensor:
    """What a client sent, as a tensor."""
    return torch.from_numpy(np.array(up.blobs["pairs"].open()))
