"""A network is a backbone with up to four heads; the names are a contract.

    h = backbone(x),  z = projector(h),  p = predictor(z),  logits = classifier(z)

Probes, export, head-only terms and freezing find their part by the prefixes `backbone`,
`projector`, `predictor`, `prototypes` and `classifier`.
"""

from typing import NamedTuple

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
