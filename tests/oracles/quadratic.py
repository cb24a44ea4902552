"""A federated quadratic that can be followed by hand: one weight vector, no data but targets.

Client k minimises 0.5 * curvature * |w - centre_k|^2 by full-batch gradient steps. The network's
parameter is the vector itself; each client's samples are all equal to its centre.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

import coterie
from coterie.core.batch import Batch
from coterie.experiment.result import Result
from coterie.kit.objective import Loss, Objective
from coterie.nets.build import Backbone
from coterie.nets.heads import Network

ENTRIES = 3
CURVATURE = 0.8


class Vector(Backbone):
    """A network that ignores its input but for its length."""

    width = ENTRIES

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(ENTRIES))

    def forward(self, x: Tensor) -> Tensor:
        return self.vector.expand(len(x), ENTRIES)


@final
@dataclass(frozen=True)
class Quadratic(Objective):
    """0.5 * curvature * |w - x|^2, the mean over the batch."""

    private: ClassVar = ()

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        return Network(Vector())

    def loss(self, net: Network, batch: Batch) -> Loss:
        gap = net.encode(batch.x) - batch.x
        return Loss(0.5 * CURVATURE * gap.square().sum(dim=1).mean())


def run(out: Path, centres: np.ndarray, sizes: list[int], **changes: dict[str, Any]) -> Result:
    """Run a method on the quadratic, one full-batch step an epoch, plain SGD."""
    sites = {
        f"site-{k}": (np.repeat(centre[None], size, axis=0).astype(np.float32), np.arange(size) % 2)
        for k, (centre, size) in enumerate(zip(centres, sizes, strict=True))
    }
    test = np.zeros((2, ENTRIES), np.float32), np.arange(2)
    tables: dict[str, dict[str, Any]] = {
        "run": {"rounds": 3},
        "objective": {"name": "quadratic:Quadratic"},
        "local": {"epochs": 4, "batch_size": 4096, "lr": 0.3, "momentum": 0.0, "weight_decay": 0.0},
        "evaluate": {"every": 0, "with": [], "targets": []},
        "executor": {"kind": "serial"},
        "checkpoint": {"every": 1, "keep": 99},
        "net": {"backbone": "mlp", "projection": 0},
    }
    for name, change in changes.items():
        tables[name] = {**tables.get(name, {}), **change}
    method = tables.pop("method")
    return coterie.fit(
        sites,
        test=test,
        out=out,
        **tables,
        **{f"method.{k}": v for k, v in method.items() if k != "name"},
        method=method["name"],
    )


def server_states(out: Path) -> list[Any]:
    """The server's state after every round."""
    from coterie.core import codec

    folders = sorted((out / "checkpoints").glob("round_*"))
    return [codec.decode((folder / "server.safetensors").read_bytes()) for folder in folders]


def client_state(out: Path, client: int) -> Any:
    """The newest state of a client."""
    from coterie.engine.client_states import StateStore

    return StateStore(out / "clients").load(client, below=10**6)


def start(out: Path) -> np.ndarray:
    """The weights before the first round, from the seed."""
    from coterie.core import seeds

    with seeds.scoped(seeds.torch_seed(0, "init", 0)):
        from coterie.core.settings import NetSettings
        from coterie.nets.build import make_backbone

        make_backbone(NetSettings("mlp"), (ENTRIES,))  # drawn before the objective replaces it
        return Vector().vector.detach().double().numpy()
