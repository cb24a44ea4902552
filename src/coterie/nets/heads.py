"""A network is a backbone with up to four heads; the names are a contract.

    h = backbone(x),  z = projector(h),  p = predictor(z),  logits = classifier(z)

Probes, export, head-only terms and freezing find their part by the prefixes `backbone`,
`projector`, `predictor`, `prototypes` and `classifier`.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

PREFIXES = ("backbone", "projector", "predictor", "prototypes", "classifier")


class Outputs(NamedTuple):
    """What a forward pass gives; z is h where there is no projector."""

    h: Tensor
    z: Tensor
    p: Tensor | None = None
    logits: Tensor | None = None


class Network(nn.Module):
    """A backbone and the heads that an objective asked for."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        projector: nn.Module | None = None,
        predictor: nn.Module | None = None,
        prototypes: nn.Module | None = None,
        classifier: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        self.predictor = predictor
        self.prototypes = prototypes
        self.classifier = classifier

    def encode(self, x: Tensor) -> Tensor:
        """The representation h that probes and exports use."""
        h: Tensor = self.backbone(x)
        return h

    def forward(self, x: Tensor) -> Outputs:
        """All outputs that the heads allow."""
        h = self.encode(x)
        z = h if self.projector is None else self.projector(h)
        p = None if self.predictor is None else self.predictor(z)
        logits = None if self.classifier is None else self.classifier(z)
        return Outputs(h, z, p, logits)


def moon_projector(width: int, projection: int) -> nn.Module:
    """FC(width, width) ReLU FC(width, projection): no norm, no final activation."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection))


def mlp_head(widths: Sequence[int], *, last_norm: bool = False, affine: bool = True) -> nn.Module:
    """Linear layers with BatchNorm and ReLU between them; the last has a norm only if asked.

    A layer before a BatchNorm has no bias, which the norm would take away again.
    """
    layers: list[nn.Module] = []
    last = len(widths) - 2
    for place, (before, after) in enumerate(pairwise(widths)):
        normed = place < last or last_norm
        layers.append(nn.Linear(before, after, bias=not normed))
        if place < last:
            layers += [nn.BatchNorm1d(after), nn.ReLU()]
        elif last_norm:
            layers.append(nn.BatchNorm1d(after, affine=affine))
    return nn.Sequential(*layers)


class TargetNetwork(Network):
    """A network with a slower copy of its backbone and projector, which no gradient reaches."""

    def __init__(self, backbone: nn.Module, *, projector: nn.Module, predictor: nn.Module) -> None:
        super().__init__(backbone, projector=projector, predictor=predictor)
        slow = Network(copy.deepcopy(backbone), projector=copy.deepcopy(projector))
        self.target = slow.requires_grad_(False)

    @torch.no_grad()
    def goal(self, x: Tensor) -> Tensor:
        """z of the target."""
        goal: Tensor = self.target(x).z
        return goal

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """target = momentum target + (1 - momentum) online, over parameters."""
        online = dict(self.named_parameters())
        for name, slow in self.target.named_parameters():
            slow.lerp_(online[name], 1.0 - momentum)

    @torch.no_grad()
    def restart(self) -> None:
        """target = online, statistics of norms too."""
        online = self.state_dict()
        self.target.load_state_dict({name: online[name] for name in self.target.state_dict()})
