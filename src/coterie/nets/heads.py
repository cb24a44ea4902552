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

from coterie.native.frozen_network import Chain, Row, links_of
from coterie.nets.build import Backbone
from coterie.nets.norm import has_peer_norm, paired

PREFIXES = ("backbone", "projector", "predictor", "prototypes", "classifier")


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
        if not torch.is_grad_enabled() and (at_once := AtOnce.of(self, x)) is not None:
            return at_once(x)
        return self.heads(self.encode(x))

    def heads(self, h: Tensor) -> Outputs:
        """What the heads make of representations."""
        z = h if self.projector is None else self.projector(h)
        p = None if self.predictor is None else self.predictor(z)
        logits = None if self.classifier is None else self.classifier(z)
        return Outputs(h, z, p, logits)

    def each(self, views: Sequence[Tensor]) -> tuple[Outputs, ...]:
        """The outputs for several views of the same samples, view by view.

        The views go through one after another, so that BatchNorm sees each by itself. Where there
        are PeerNorm layers they go through at once, as these look at all views of a sample.
        """
        if not has_peer_norm(self):
            return tuple(self(view) for view in views)
        with paired(self, len(views)):
            together: Outputs = self(torch.cat(list(views)))
        columns = [[None] * len(views) if o is None else o.chunk(len(views)) for o in together]
        return tuple(Outputs(*row) for row in zip(*columns, strict=True))


class AtOnce:
    """The outputs of a network without gradients, as far as possible from one call of a kernel.

    Later changes of the weights in their place are seen.
    """

    def __init__(self, net: Network, chain: Chain, whole: bool) -> None:
        self._net, self._chain, self._whole = net, chain, whole
        self.takes = chain.takes

    @classmethod
    def of(cls, net: Network, x: Tensor) -> "AtOnce | None":
        """For batches like `x`; None where no kernel takes them."""
        row = _row(net, x)
        if row is None:
            return None
        heads = [links_of(part) for part in (net.projector, net.classifier) if part is not None]
        plain = [one for one in heads if one is not None]
        whole = net.predictor is None and len(plain) == len(heads)
        row = Row(row.convolutions, [*row.parts, *plain]) if whole else row
        return cls(net, Chain(x.shape[1:], x.dtype, [row]), whole)

    def __call__(self, x: Tensor) -> Outputs:
        """All outputs that the heads allow."""
        h, *rest = self._chain(x)
        if not self._whole:
            return self._net.heads(h)
        z = h if self._net.projector is None else rest[0]
        return Outputs(h, z, None, None if self._net.classifier is None else rest[-1])


def _row(net: Network, x: Tensor) -> Row | None:
    return net.backbone.row(x) if isinstance(net.backbone, Backbone) else None


def projections_at_once(nets: Sequence[Network], x: Tensor) -> Chain | None:
    """One call for z of several networks, for batches like `x`; None where no kernel has it."""
    rows = []
    for net in nets:
        row = _row(net, x)
        projector = [] if net.projector is None else links_of(net.projector)
        if row is None or projector is None:
            return None
        layers = [link for part in row.parts for link in part]
        rows.append(Row(row.convolutions, [[*layers, *projector]]))
    return Chain(x.shape[1:], x.dtype, rows)


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

    def follow(self, momentum: float) -> None:
        """target = momentum target + (1 - momentum) online, over parameters."""
        follow(self.target, self, momentum)

    @torch.no_grad()
    def restart(self) -> None:
        """target = online, statistics of norms too."""
        online = self.state_dict()
        self.target.load_state_dict({name: online[name] for name in self.target.state_dict()})
