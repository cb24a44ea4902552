"""The contenders of `compare.py`, each in processes of its own that wait for their turn.

All are driven alike: `round` lets one round go and returns when it is done, so that one clock
measures them all. `close` lets them end; then they say what they learned and in how many steps.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from environments import environment
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parent.parent))

from round import WORKERS, Child, Coterie

HERE = Path(__file__).parent
Task = dict[str, Any]


class Contender(Protocol):
    """One who does the work of a round when told to."""

    allowed: str  # threads and processes
    children: list[Child]

    def round(self) -> object:
        """Do a round."""

    def close(self) -> None:
        """End."""

    def weights(self) -> np.ndarray:
        """The averaged model after the last round."""

    def steps(self) -> float:
        """Optimiser steps of all clients in a round, as it counted them; after the end."""


def described(path: Path, task: Task, **more: Any) -> str:
    """Write what there is to do to a file."""
    path.write_text(json.dumps({**task, **more}))
    return str(path)


def piles(shares: list[list[int]], count: int) -> list[list[list[int]]]:
    """Clients dealt, largest first, to the pile with fewer samples."""
    found: list[list[list[int]]] = [[] for _ in range(count)]
    for share in sorted(shares, key=len, reverse=True):
        min(found, key=lambda pile: sum(map(len, pile))).append(share)
    return found


class OwnRun(Coterie):
    """A run of Coterie that is played to its end."""

    allowed = f"{WORKERS} worker processes, one thread each"

    def __init__(self, tables: dict[str, Any], folder: Path, names: list[str], steps: int) -> None:
        super().__init__(tables, folder)
        self._folder, self._names, self._steps = folder, names, steps

    def close(self) -> None:
        """Let it write its outputs."""
        self._child.send("end")
        super().close()

    def weights(self) -> np.ndarray:
        """Of its global model, in the order of the layers."""
        found = load_file(self._folder / "model.safetensors")
        return np.concatenate([found[name].reshape(-1) for name in self._names])

    def steps(self) -> float:
        """As its batches are cut."""
        return self._steps


class PlainLoop:
    """MOON or FedAvg as a plain loop in two processes, averaged here."""

    allowed = f"{WORKERS} processes, one thread each"

    def __init__(self, task: Task, folder: Path, moon: bool) -> None:
        self._folder, self._steps, self._rounds = folder, 0, 0
        folder.mkdir()
        self._samples = sum(map(len, task["clients"]))
        self._global = folder / "global.npy"
        np.save(self._global, np.load(task["start"]))
        self._outs = [folder / f"sum-{place}.npy" for place in range(WORKERS)]
        self.children = [
            Child(
                "peers/plain_moon.py",
                described(out.with_suffix(".json"), task, clients=pile, moon=moon, out=str(out)),
                log=folder / f"{out.stem}.log",
            )
            for pile, out in zip(piles(task["clients"], WORKERS), self._outs, strict=True)
        ]

    def round(self) -> None:
        """Train in both, then average."""
        for child in self.children:
            child.send(str(self._global))
        self._steps += sum(json.loads(child.receive())["steps"] for child in self.children)
        self._rounds += 1
        total = sum(np.load(out) for out in self._outs)
        np.save(self._global, (total / self._samples).astype(np.float32))

    def close(self) -> None:
        """End the processes."""
        for child in self.children:
            child.close()

    def weights(self) -> np.ndarray:
        """The last average."""
        return np.load(self._global)

    def steps(self) -> float:
        """As the processes counted."""
        return self._steps / self._rounds


class Peer:
    """Another framework, in its own environment."""

    script: str
    name: str

    def __init__(
        self, task: Task, folder: Path, processes: list[dict[str, str]], allowed: str
    ) -> None:
        self.allowed, self._folder, self._rounds = allowed, folder, task["rounds"]
        folder.mkdir()
        python = str(environment(self.name))
        path = described(folder / "task.json", task, out=str(folder))
        self.children = [
            Child(
                f"peers/{self.script}",
                path,
                python=python,
                variables=variables,
                log=folder / f"{place}.log",
            )
            for place, variables in enumerate(processes)
        ]

    def round(self) -> None:
        """Let all its processes go, and wait for all."""
        for child in self.children:
            child.send("go")
        for child in self.children:
            child.receive()

    def close(self) -> None:
        """It has done its last round and ends by itself."""
        for child in self.children:
            child.close()

    def weights(self) -> np.ndarray:
        """As the first process left them."""
        return np.load(self._folder / "weights.npy")

    def steps(self) -> float:
        """As the processes counted."""
        files = self._folder.glob("steps-*.json")
        return sum(json.loads(file.read_text()) for file in files) / self._rounds


class Pfl(Peer):
    """pfl-research: one process for each worker, or one process with as many threads."""

    name, script = "pfl", "run_pfl.py"

    def __init__(self, task: Task, folder: Path, workers: int = WORKERS) -> None:
        threads = str(WORKERS // workers)
        common = {"PFL_PYTORCH_DEVICE": "cpu", "OMP_NUM_THREADS": threads}
        common["MKL_NUM_THREADS"] = threads
        processes = [common]
        if workers > 1:
            addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(workers))
            processes = [
                {**common, "PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)}
                for rank in range(workers)
            ]
        super().__init__(task, folder, processes, f"{workers} workers, {threads} threads each")


class Flower(Peer):
    """Flower's simulation: Ray with one core for each client, so that two run side by side."""

    name, script = "flower", "run_flower.py"

    def __init__(self, task: Task, folder: Path) -> None:
        variables = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_HOME": str(folder / "home"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": str(HERE),
        }
        allowed = f"Ray with {WORKERS} cores, one for each client, one thread each"
        super().__init__({**task, "cores": WORKERS}, folder, [variables], allowed)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
