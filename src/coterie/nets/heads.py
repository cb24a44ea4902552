"""A network is a backbone with up to four heads; the names are a contract.

    h = backbone(x),  z = projector(h),  p = predictor(z),  logits = classifier(z)

With `net.unit_projection` the projector ends with a layer that divides z by its length.

Probes, export, head-only terms and freezing find their part by the prefixes `backbone`,
`projector`, `predictor`, `prototypes` and `classifier`.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.errors import ConfigError
from coterie.native.frozen_network import OneCall
from coterie.native.trained_network import TrainedCall
from coterie.native.unit_length import UnitLength
from coterie.nets.norm import find_peers, halved, paired
from coterie.nets.precision import casting, lay_out, to_float32

_TWO = 2  # classes


class Outputs(NamedTuple):
    """What a forward pass gives; z is h where there is no projector."""

    h: Tensor
    z: Tensor
    p: Tensor | None = None
    logits: Tensor | None = None


class Network(nn.Module):
    """A backbone and the heads that an objective asked for."""

    unit_images = False  # it sees images in [0, 1], without the data set's mean and deviation
    central: tuple[str, ...] = ()
    """Prefixes of names that only the server trains: no client keeps a private part of these, and
    their BatchNorm statistics are the server's own whatever `net.bn_buffers` says."""

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
        self.backbone, self.projector, self.predictor = backbone, projector, predictor
        self.prototypes, self.classifier = prototypes, classifier
        self._frozen, self._trained = OneCall(), TrainedCall()

    def encode(self, x: Tensor) -> Tensor:
        """The representation h that probes and exports use."""
        with casting(x):
            h: Tensor = self.backbone(lay_out(x))
        return to_float32(h)

    def forward(self, x: Tensor) -> Outputs:
        """All outputs that the heads allow."""
        if self.predictor is None:
            parts = [m for m in (self.backbone, self.projector, self.classifier) if m is not None]
            with casting(x):  # under which no whole network is one call
                outputs = self._frozen([parts], x) or self._trained(parts, x)
            if outputs is not None:
                h, *rest = outputs
                z = h if self.projector is None else rest[0]
                return Outputs(h, z, None, None if self.classifier is None else rest[-1])
        return self.heads(self.encode(x))

    def projection(self) -> nn.Module:
        """The part that gives z: backbone and projector, one after the other."""
        if self.projector is None:
            return self.backbone
        return nn.Sequential(self.backbone, self.projector)

    def heads(self, h: Tensor) -> Outputs:
        """What the heads make of representations."""
        with casting(h):
            z = h if self.projector is None else self.projector(h)
            p = None if self.predictor is None else self.predictor(z)
            logits = None if self.classifier is None else self.classifier(z)
        optional = (None if one is None else to_float32(one) for one in (p, logits))
        return Outputs(h, to_float32(z), *optional)

    def each(self, views: Sequence[Tensor]) -> tuple[Outputs, ...]:
        """The outputs for several views of the same samples, view by view.

        The views go through one after another, so that BatchNorm sees each by itself. Where there
        are PeerNorm layers they go through at once, as these look at all views of a sample; with
        `peers = "images"` again one after another, the halves of each as peers.
        """
        peers = find_peers(self)
        if peers is None:
            with casting(views[0]):  # weights are converted once for all views
                return tuple(self(view) for view in views)
        if peers == "images":
            with halved(self):
                return tuple(self(view) for view in views)
        with paired(self, len(views)):
            together: Outputs = self(torch.cat(list(views)))
        columns = [[None] * len(views) if o is None else o.chunk(len(views)) for o in together]
        return tuple(Outputs(*row) for row in zip(*columns, strict=True))


def make_classifier(width: int, classes: int, one_logit: bool = False) -> nn.Linear:
    """A linear layer with one logit a class.

    With `one_logit`, two classes begin as -s/2 and s/2, where s is the one logit of a layer of its
    own: gradients keep it so, and the layer is logistic regression, not twice as spread at first.
    """
    layer = nn.Linear(width, classes)
    if one_logit and classes == _TWO:
        with torch.no_grad():
            for weight in layer.parameters():
                weight[1] /= 2
                weight[0] = -weight[1]
    return layer


def moon_projector(width: int, projection: int) -> nn.Module:
    """FC(width, width) ReLU FC(width, projection): no norm, no final activation."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection))


def make_unit(net: Network) -> None:
    """Let z = projector(h) / |projector(h)|, in a network and in the networks that it holds.

    The names of weights stay, unless a projector of one's own is no `nn.Sequential`: it then has
    the prefix `projector.0`.
    """
    if net.projector is None:
        raise ConfigError(
            "net.unit_projection = true needs a projector, and the objective builds none; leave it "
            "out"
        )
    for one in [module for module in net.modules() if isinstance(module, Network)]:
        if one.projector is None:
            continue
        if type(one.projector) is not nn.Sequential:
            one.projector = nn.Sequential(one.projector)
        one.projector.append(UnitLength())


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


@torch.no_grad()
def follow(slow: Network, online: Network, momentum: float) -> None:
    """slow = momentum slow + (1 - momentum) online, over the parameters of slow."""
    weights = dict(online.named_parameters())
    for name, weight in slow.named_parameters():
        weight.lerp_(weights[name], 1.0 - momentum)


class TargetNetwork(Network):
    """A network with a slower copy of its backbone and projector, which no gradient reaches."""

    def __init__(self, backbone: nn.Module, *, projector: nn.Module, predictor: nn.Module) -> None:
        super().__init__(backbone, projector=projector, predictor=predictor)
        slow = Network(copy.deepcopy(backbone), projector=copy.deepcopy(projector))
        self.target = slow.requires_grad_(False)

    @torch.no_grad()
    def goals(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """z of the target for several views of the same samples."""
        return tuple(outputs.z for outputs in self.target.each(views))

    @torch.no_grad()
    def restart(self) -> None:
        """target = online, statistics of norms too."""
        online = self.state_dict()
        self.target.load_state_dict({name: online[name] for name in self.target.state_dict()})
