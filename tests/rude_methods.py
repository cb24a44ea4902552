"""Methods whose clients do what they must not. Workers import this file as `rude_methods`."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch

from coterie.core.bundle import Bundle, ClientState, Payload, ServerState
from coterie.core.task import Reply
from coterie.kit import ClientContext, Entry, Gather, Mean, Method, ServerContext, stock, train
from toy_methods import TwoModels

WRONG: dict[str, Any] = {
    "shape": torch.ones(7),
    "dtype": torch.ones(3, dtype=torch.float64),
    "nan": torch.tensor([1.0, float("nan"), 1.0]),
    "large": torch.full((3,), 1e38),
    "complex": torch.ones(3) * 1j,
}
SCALARS: dict[str, Any] = {
    "bytes": b"a",
    "integer": 1 << 5000,
    "numpy": np.float32(0.5),
    "not a number": float("nan"),
}


@final
@dataclass(frozen=True)
class Rude(Method):
    """FedAvg with a vector by class; client k does what `faults[k]` says."""

    faults: tuple[str, ...] = ()

    reduce: ClassVar = {
        "model": Mean(),
        "stats": Gather(entries={"v": Entry("float32", ("classes",))}),
    }

    init = stock.start_from_net
    broadcast = stock.send_model
    model = stock.global_model

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        fault = self.faults[ctx.id] if ctx.id < len(self.faults) else ""
        if fault == "exit":
            sys.exit("enough")
        if fault == "interrupt":
            raise KeyboardInterrupt
        net = ctx.net(down["model"])
        train(ctx, net, ctx.objective.loss)
        stats = {"v": WRONG.get(fault, torch.ones(3))}
        scalars = {"x": SCALARS[fault]} if fault in SCALARS else {}
        return Bundle({"model": ctx.shared(net), "stats": stats}, scalars), None

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        reduced = ctx.reduce(replies)
        ctx.metrics["stats"] = float(sum(t["v"].sum() for t in reduced.gathered["stats"].values()))
        return ctx.step(server, reduced["model"])


@final
@dataclass(frozen=True)
class Undeclared(Method):
    """Sends a group of which nobody knows what it must look like."""

    reduce: ClassVar = {"model": Mean(), "stats": Gather()}

    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model


@final
@dataclass(frozen=True)
class Mortal(Method):
    """FedAvg whose clients keep their weights, and whose worker is killed in a share of tasks.

    How often a task dies depends on seed, round and client; `folder` counts the tries.
    """

    share: float = 0.0
    seed: int = 0
    folder: str = ""

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def deaths(self, round: int, client: int) -> int:
        """How many tries of a task die, one after the other."""
        draws = np.random.default_rng([self.seed, round, client]).random(10) >= self.share
        return int(draws.argmax())

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        if self.share:
            with (Path(self.folder) / f"{ctx.round.index}-{ctx.id}").open("ab") as tries:
                if tries.tell() < self.deaths(ctx.round.index, ctx.id):
                    tries.write(b".")
                    tries.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
        net = ctx.net(down["model"])
        train(ctx, net, ctx.objective.loss)
        return Bundle({"model": ctx.shared(net)}), Bundle({"last": ctx.shared(net)})


@final
@dataclass(frozen=True)
class Wild(Method):
    """FedAvg with a state; some tasks fail in one of five ways, some kill their worker once.

    Which do depends on round and client. `folder` has what killed a worker; without it none dies.
    """

    share: float = 0.05  # of tasks, for each way to fail
    folder: str = ""

    ways: ClassVar = ("raise", "exit", "nan", "large", "shape", "die")

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        drawn = int(np.random.default_rng([ctx.round.index, ctx.id]).random() / self.share)
        way = self.ways[drawn] if drawn < len(self.ways) else ""
        if way == "raise":
            raise ValueError("a client's own mistake")
        if way == "exit":
            sys.exit("enough")
        if way == "die" and self.folder:
            died = Path(self.folder) / f"{ctx.round.index}-{ctx.id}"
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        net = ctx.net(down["model"])
        train(ctx, net, ctx.objective.loss)
        weights = ctx.shared(net)
        rounds = state.scalars["rounds"] if state else 0
        kept = Bundle({"last": weights}, {"rounds": int(rounds) + 1})
        if way in WRONG:
            name = next(iter(weights))
            wrong = {"nan": torch.full_like(weights[name], float("nan"))}
            wrong["large"] = torch.full_like(weights[name], 1e38)
            weights = {**weights, name: wrong.get(way, torch.ones(7))}
        return Bundle({"model": weights}), kept


def clocks_that_run_backwards() -> dict[str, Callable[[], float]]:
    """Functions of `time` that are an hour earlier at every call."""
    now = time.time()

    def backwards() -> float:
        nonlocal now
        now -= 3600.0
        return now

    return {"time": backwards, "time_ns": lambda: int(backwards() * 1e9)}


@final
@dataclass(frozen=True)
class BackwardClock(Method):
    """Two models as `TwoModels`; the clock of the process of its clients runs backwards."""

    note: str = ""  # a file for the numbers of these processes; without it the clock is right

    objectives = None
    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        if self.note:
            with Path(self.note).open("a") as file:
                file.write(f"{os.getpid()}\n")
            for name, clock in clocks_that_run_backwards().items():
                setattr(time, name, clock)
        return TwoModels().client_update(ctx, down, state)

    def personal(self, ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        return TwoModels().personal(ctx, down, state)
