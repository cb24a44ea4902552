"""Normalisation layers by name, and Peer Normalization (PN) of the MFCL paper (2022).

PN normalises the augmented views of one sample together, channels in G groups of C / G:

    y_c = gamma_c (x_c - mu) / sqrt(sigma^2 + eps) + beta_c
    mu, sigma^2 over the V views x the channels of a group x all pixels of one sample   (Eq. 3, 4)

so that a sample's output depends on no other sample. Eq. 3 as printed does not average over the
pixels; here they are averaged over, as in Figure 3 and the authors' code. That code takes the mean
of the views' own variances (`var = "average"`), which lacks (mu_1 - mu_2)^2 / 4 of the variance of
both together (`"pooled"`). Groups are contiguous channels; gamma and beta are per
channel; a single view is its own peer, which is GroupNorm. There are no running statistics.

Peers may be two images instead (`halved`): the first half of the rows of one view with the second.
So the authors' code encodes for the server, where each view passes by itself.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.settings import GROUPS, NetSettings, NormKind, Peers
from coterie.native.switch import intercepted

Variance = Literal["pooled", "average"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class PeerNorm(nn.Module):
    """Normalises the views of every sample together; takes (V K, C, ...).

    The batch has view 1 of K samples, then view 2 of the same K in the same order, and so on.
    Inside a network, `paired` sets the number of views for a forward pass, and `halved` makes peers
    of the images of a single view. Which of the two `Network.each` does is `peers`.
    """

    def __init__(
        self,
        channels: int,
        groups: int = GROUPS,
        views: int = 2,
        var: Variance = "pooled",
        eps: float = 1e-3,
        peers: Peers = "views",
    ) -> None:
        super().__init__()
        if min(channels, groups, views) < 1:
            raise ValueError(
                f"PeerNorm needs one channel, group and view or more, not {channels}, {groups} and "
                f"{views}"
            )
        if var not in get_args(Variance):
            raise ValueError(f"the variance of PeerNorm is 'pooled' or 'average', not {var!r}")
        if peers not in get_args(Peers):
            raise ValueError(f"the peers of PeerNorm are 'views' or 'images', not {peers!r}")
        self.channels, self.groups = channels, groups_of(channels, groups)
        self.views, self.var, self.eps, self.peers = views, var, eps, peers
        self.block: int | None = None  # rows of one view whose halves are peers; 0: the whole batch
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch, keeping its order."""
        if self.block is not None:
            return self._normalise_halves(x, self.block)
        if self.views == 1:
            return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
        return self._normalise_views(x, self.views)

    def _normalise_halves(self, x: Tensor, block: int) -> Tensor:
        """Normalise row i with row i + b / 2 of each block of b rows; an odd one by itself."""
        paired_rows, single_rows = match_halves(len(x), block)
        parts = []
        if len(paired_rows):
            parts.append(self._normalise_views(x[paired_rows], 2))
        if len(single_rows):
            single = x[single_rows]
            parts.append(F.group_norm(single, self.groups, self.weight, self.bias, self.eps))
        return torch.cat(parts)[torch.cat([paired_rows, single_rows]).argsort()]

    def _normalise_views(self, x: Tensor, views: int) -> Tensor:
        """Normalise row i of each of `views` equal parts of the batch together."""
        if x.shape[1] != self.channels:
            raise ValueError(f"PeerNorm has {self.channels} channels, the batch {x.shape[1]}")
        if len(x) % views:
            raise ValueError(
                f"PeerNorm takes {views} views of every sample, one view of all samples after "
                f"another; a batch of {len(x)} is not a multiple of that"
            )
        rows = x.reshape(views, len(x) // views, self.channels, -1)
        given = (rows, self.weight, self.bias, self.groups, self.var == "average", self.eps)
        if intercepted():
            return _normalise_by_graph(*given).reshape(x.shape)
        y: Tensor = _Peers.apply(*given)  # type: ignore[no-untyped-call]
        return y.reshape(x.shape)

    def extra_repr(self) -> str:
        """Describe the layer for `print`."""
        return f"{self.channels}, groups={self.groups}, views={self.views}, var={self.var!r}"


class _Peers(torch.autograd.Function):
    """PN of (views, samples, channels, pixels) with a hand-written gradient: twice as fast.

    With m = mu, or under `average` the mean of a view alone, and r = 1 / sqrt(sigma^2 + eps):

        y  = gamma (x - mu) r + beta,      sigma^2 = mean (x - m)^2,      g = gamma dy
        dx = r (g - mean g) - r^3 (x - m) mean(g (x - mu))
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, average: bool, eps: float
    ) -> Tensor:
        """Compute y."""
        centred, scale, shift, *moments = _scales(x, weight, bias, groups, average, eps)
        ctx.save_for_backward(x, weight, bias, *moments)
        ctx.how = (groups, average, eps)
        return centred.reshape(x.shape).mul_(scale[..., None]).add_(shift[..., None])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute dx, dgamma and dbeta."""
        x, weight, bias, mean, middle, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # what is returned will be differentiated too
            y = _normalise_by_graph(x, weight, bias, *ctx.how)
            return *_gradients(y, (x, weight, bias), dy, ctx.needs_input_grad), None, None, None
        channels, entries = x.shape[2], x[:, 0].numel() // inverse.shape[1]
        total = dy.sum(dim=3)
        along = torch.linalg.vecdot(dy, x) - _spread(mean, channels) * total  # sum dy (x - mu)
        means = [
            (part * weight).sum(dim=0).reshape(*inverse.shape, -1).sum(dim=2) / entries
            for part in (total, along)
        ]
        slope = -(inverse**3) * means[1]
        rest = -inverse * means[0] - slope * middle
        dx = dy * (_spread(inverse, channels) * weight)[..., None]
        dx = dx.addcmul_(x, _spread(slope, channels)[..., None])
        dx = dx.add_(_spread(rest, channels)[..., None])
        dweight = (along * _spread(inverse, channels)).sum(dim=(0, 1))
        return dx, dweight, total.sum(dim=(0, 1)), None, None, None


def _scales(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, average: bool, eps: float
) -> tuple[Tensor, ...]:
    """x - m in groups, the scale and shift that make y of it; mu, m and r of `_Peers`."""
    views, samples, channels, _ = x.shape
    grouped = x.reshape(views, samples, groups, -1)
    means = grouped.mean(dim=3)
    mean = means.mean(dim=0, keepdim=True)
    middle = means if average else mean
    centred = grouped - middle[..., None]
    entries = views * grouped.shape[3]
    variance = torch.linalg.vecdot(centred, centred).sum(dim=0) / entries
    inverse = torch.rsqrt(variance + eps)
    scale = _spread(inverse, channels) * weight
    shift = _spread(middle - mean, channels) * scale + bias
    return centred, scale, shift, mean, middle, inverse


def _normalise_by_graph(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, average: bool, eps: float
) -> Tensor:
    """As `_Peers`; torch finds the gradient, and that of the gradient."""
    centred, scale, shift, *_ = _scales(x, weight, bias, groups, average, eps)
    return centred.reshape(x.shape) * scale[..., None] + shift[..., None]


def _gradients(
    y: Tensor, leaves: tuple[Tensor, ...], dy: Tensor, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """The gradients of the leaves that need one, with a graph of their own."""
    asked = [leaf for leaf, is_asked in zip(leaves, needed, strict=False) if is_asked]
    gradients = iter(torch.autograd.grad(y, asked, dy, create_graph=True))
    return [next(gradients) if is_asked else None for is_asked in needed[: len(leaves)]]


def _spread(values: Tensor, channels: int) -> Tensor:
    """Repeat the values of groups for each of their channels."""
    return values.repeat_interleave(channels // values.shape[-1], dim=-1)


def match_halves(count: int, block: int = 0) -> tuple[Tensor, Tensor]:
    """List rows with a peer, all first ones before all second ones, and the rows without.

    Blocks of `block` rows (0: all rows) are cut in halves; row i of the first half is the peer of
    row i of the second. The last row of a block with an odd number of rows has no peer.
    """
    size = block or max(1, count)
    firsts, seconds, singles = list[int](), list[int](), list[int]()
    for start in range(0, count, size):
        stop = min(start + size, count)
        half = (stop - start) // 2
        firsts += range(start, start + half)
        seconds += range(start + half, start + 2 * half)
        singles += range(start + 2 * half, stop)
    return torch.tensor(firsts + seconds, dtype=torch.int64), torch.tensor(
        singles, dtype=torch.int64
    )


@contextmanager
def paired(module: nn.Module, views: int = 2) -> Iterator[None]:
    """Set the number of views per batch in the PeerNorm layers of a module, within a `with`.

        with paired(net, views=2):
            outputs = net(torch.cat([view1, view2]))

    Outside, networks take single views, such as test images.
    """
    if views < 1:
        raise ValueError(f"a batch has at least one view, not {views}")
    with _set_in_layers(module, "views", views):
        yield


@contextmanager
def halved(module: nn.Module, block: int = 0) -> Iterator[None]:
    """Make peers of the two halves of every block of rows of one view, within a `with`.

        with halved(net, block=32):          # rows 0 and 16, 1 and 17, ... of every 32
            outputs = net(view)

    With `block = 0` the whole batch is one block.
    """
    if block < 0:
        raise ValueError(f"a block has at least one row, or 0 for the whole batch, not {block}")
    with _set_in_layers(module, "block", block):
        yield


@contextmanager
def _set_in_layers(module: nn.Module, attribute: str, value: int) -> Iterator[None]:
    """Set an attribute of all PeerNorm layers of a module, within a `with`."""
    layers = [layer for layer in module.modules() if isinstance(layer, PeerNorm)]
    before = [getattr(layer, attribute) for layer in layers]
    try:
        for layer in layers:
            setattr(layer, attribute, value)
        yield
    finally:
        for layer, earlier in zip(layers, before, strict=True):
            setattr(layer, attribute, earlier)


def find_peers(module: nn.Module) -> Peers | None:
    """Tell who are peers in training: what the first PeerNorm layer says; None without any."""
    layers = (layer for layer in module.modules() if isinstance(layer, PeerNorm))
    return next((layer.peers for layer in layers), None)


@dataclass(frozen=True)
class Norm:
    """Which normalisation layers a network has; `groups` and the rest are for GN and PN."""

    kind: NormKind
    groups: int = GROUPS
    peers: Peers = "views"
    variance: Variance = "pooled"

    @classmethod
    def of(cls, settings: NetSettings) -> "Norm":
        """Read the layers that `[net]` asks for."""
        return cls(settings.norm, settings.groups, settings.peers)

    def make_1d(self, features: int) -> nn.Module:
        """Make a layer for vectors of `features` entries, or signals of so many channels."""
        return nn.BatchNorm1d(features) if self.kind == "bn" else self._make(features)

    def make_2d(self, channels: int) -> nn.Module:
        """Make a layer for images of `channels` channels."""
        return nn.BatchNorm2d(channels) if self.kind == "bn" else self._make(channels)

    def _make(self, channels: int) -> nn.Module:
        if self.kind == "pn":  # for single views; `paired` sets more
            return PeerNorm(channels, self.groups, 1, self.variance, peers=self.peers)
        if self.kind == "gn":
            return nn.GroupNorm(groups_of(channels, self.groups), channels)
        return nn.Identity()


def groups_of(channels: int, groups: int = GROUPS) -> int:
    """Choose gcd(channels, groups) groups, or one if there are fewer channels than groups."""
    return math.gcd(channels, groups) if channels >= groups else 1


def batch_norm_buffers(net: nn.Module) -> frozenset[str]:
    """List the names of the running statistics of all BatchNorm layers."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in net.named_modules()
        if isinstance(module, BATCH_NORMS)
        for name, _ in module.named_buffers(recurse=False)
    )
