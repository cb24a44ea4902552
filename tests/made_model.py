"""The files of a finished run for a network that was not trained: `model.json` and its weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import coterie
from coterie.core.settings import NetSettings
from coterie.engine.rundir import write_weights
from coterie.experiment.model_file import (
    InputDescription,
    ModelFile,
    SavedWeights,
    WeightsFile,
)
from coterie.experiment.schema import write_fields
from coterie.kit.builder import Builder
from coterie.kit.method import Method
from coterie.kit.networks import Nets
from coterie.kit.objective import Objective
from coterie.methods.fedavg import FedAvg
from coterie.objectives.supervised import Supervised

CLASSES = ("cat", 'dog, "big"', "fish")
CLIENTS = ("north", "south")


def write(
    folder: Path,
    shape: tuple[int, ...] = (1, 16, 16),
    *,
    method: Method | None = None,
    objective: Objective | None = None,
    dtype: str = "uint8",
    resize: int = 0,
    classes: tuple[int | str, ...] = CLASSES,
    **net: Any,
) -> Path:
    """Write a run directory: random weights, personal models for two clients."""
    method, objective = method or FedAvg(), objective or Supervised()
    settings = NetSettings(**{"backbone": "simple-cnn", "projection": 8, **net, "kernel": "torch"})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = method.nets(Builder(objective, settings, shape, len(classes)))["model"]
        scramble(network)
    local = settings.bn_buffers == "local"
    nets = Nets({"model": network}, private=objective.private, local_buffers=local)
    shared, kept = nets.split("model", network)
    central = bool(network.unit_images) or dtype != "uint8"
    half = () if central else (0.4,) * shape[0]
    table = {"name": type(method).__module__.rpartition(".")[2], **write_fields(method)}
    described = ModelFile(
        coterie=coterie.__version__,
        method=table,
        objective={
            "name": type(objective).__module__.rpartition(".")[2],
            **write_fields(objective),
        },
        net={k: v for k, v in write_fields(settings).items() if k != "kernel"},
        input=InputDescription(
            {1: "table", 2: "signal", 3: "image"}[len(shape)], shape, dtype, half, half, resize
        ),
        classes=classes,
        clients=CLIENTS,
        kept=tuple(kept),
        weights=SavedWeights(
            last=WeightsFile(
                "model.safetensors", write_weights(folder / "model.safetensors", shared), 4
            ),
            personal={
                client: WeightsFile(
                    f"personal/{client}.safetensors",
                    write_weights(
                        folder / "personal" / f"{client}.safetensors", {**shared, **kept}
                    ),
                )
                for client in CLIENTS
            },
        ),
    )
    described.write(folder)
    return folder


@torch.no_grad()
def scramble(net: nn.Module) -> None:
    """Give norms weights and statistics that are not those of a fresh network."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            if module.weight is not None:
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0.0, 0.1)
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
