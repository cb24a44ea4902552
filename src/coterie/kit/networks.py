"""Nets: the networks of a method as scratch modules, built once and loaded many times.

Some names of a network never leave its client: what the objective calls private, and BatchNorm
statistics under `net.bn_buffers = "local"`. Everybody else sees only the shared names. Names that
only the server trains (`Network.central`) are never kept.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from coterie.core.batch import Batch, Stretch
from coterie.core.bundle import Tensors
from coterie.native.frozen_network import OneCall
from coterie.nets.heads import Network, Outputs
from coterie.nets.norm import BATCH_NORMS, batch_norm_buffers

Sweep = Callable[[], Iterator[Batch]]  # gives all training samples in order


class Frozen:
    """A reference network: eval mode, no gradients, called with a batch or with images.

    Training batches come in stretches, and a stretch goes through the network at once. Where the
    images are the same in every epoch (`sweep` gives them, in order) all outputs are computed at
    the first call and looked up from then on.
    """

    def __init__(self, net: Network, sweep: Sweep | None = None) -> None:
        self.net = net
        self._sweep = sweep
        self._stretch: Stretch | None = None
        self._table: Outputs | None = None
        self._ahead: Outputs | None = None

    def __call__(self, batch: Batch | Tensor) -> Outputs:
        """The outputs for the first view of a batch."""
        if isinstance(batch, Tensor):
            return self._forward(batch)
        if batch.plain and self._sweep is not None:
            if self._table is None:
                self._table = _joined([self._forward(part.x) for part in self._sweep()])
            return _map(self._table, lambda outputs: outputs[batch.index])
        if batch.stretch is None:
            return self._forward(batch.x)
        if self._ahead is None or self._stretch is not batch.stretch:
            self._stretch, self._ahead = batch.stretch, self._forward(batch.stretch.views[0])
        if len(self._ahead.z) == len(batch):
            return self._ahead
        stop = batch.start + len(batch)
        return _map(self._ahead, lambda outputs: outputs[batch.start : stop])

    def _forward(self, x: Tensor) -> Outputs:
        with torch.no_grad():
            outputs: Outputs = self.net(x)
        return outputs

    def each(self, views: Sequence[Tensor]) -> tuple[Outputs, ...]:
        """The outputs for several views of the same samples."""
        with torch.no_grad():
            return self.net.each(views)

    def encode(self, x: Tensor) -> Tensor:
        """The representation h of images."""
        with torch.no_grad():
            return self.net.encode(x)

    def project(self, x: Tensor) -> Tensor:
        """The projection z of images; h where there is no projector."""
        return self._forward(x).z


class References:
    """Several reference networks that see the same batches and are asked for z alone."""

    def __init__(self, networks: Sequence[Frozen]) -> None:
        self._networks = tuple(networks)
        self._projections = [[one.net.projection()] for one in networks]
        self._one_call = OneCall()

    def __call__(self, batch: Batch) -> list[Tensor]:
        """z of every network for the first view of a batch; where possible in one call."""
        alone = batch.stretch is None or len(batch.stretch.views[0]) == len(batch)
        if alone and not batch.plain:
            with torch.no_grad():
                outputs = self._one_call(self._projections, batch.x)
            if outputs is not None:
                return outputs
        return [one(batch).z for one in self._networks]


def _map(outputs: Outputs, change: Callable[[Tensor], Tensor]) -> Outputs:
    return Outputs._make(None if one is None else change(one) for one in outputs)


def _joined(parts: Sequence[Outputs]) -> Outputs:
    rows = zip(*parts, strict=True)
    return Outputs._make(None if row[0] is None else torch.cat(row) for row in rows)


class Nets(dict[str, Network]):
    """The freshly initialised networks by key, and scratch copies of them on a device."""

    def __init__(
        self,
        initial: Mapping[str, Network],
        *,
        private: tuple[str, ...] = (),
        local_buffers: bool = False,
        device: str = "cpu",
    ) -> None:
        super().__init__({key: net.eval() for key, net in initial.items()})
        self._start = {key: _copies(net) for key, net in initial.items()}
        self._trained = {
            key: {name: p.requires_grad for name, p in net.named_parameters()}
            for key, net in initial.items()
        }
        self._kept = {
            key: frozenset(
                name
                for name in net.state_dict()
                if name.startswith(private) or (local_buffers and name in batch_norm_buffers(net))
                if not name.startswith(net.central)
            )
            for key, net in initial.items()
        }
        self.device = torch.device(device)
        self.local_buffers = local_buffers
        self._scratch: dict[tuple[str, str], Network] = {}
        self._frozen: dict[str, list[Network]] = {}
        self._lent: dict[str, int] = {}

    @property
    def in_lanes(self) -> bool:
        """Whether a network wants the samples of a batch innermost in memory."""
        return any(getattr(net.backbone, "in_lanes", False) for net in self.values())

    def weights(self, key: str = "model") -> Tensors:
        """The initial weights under the shared names."""
        return {n: t.clone() for n, t in self._start[key].items() if n not in self._kept[key]}

    def parameters(self, key: str = "model") -> frozenset[str]:
        """The names that a server optimiser may act on: parameters, not buffers."""
        return frozenset(self._trained[key])

    def split(self, key: str, net: nn.Module) -> tuple[Tensors, Tensors]:
        """Copies of a network's weights: those that may be sent, those that are kept."""
        weights, kept = _copies(net), self._kept[key]
        shared = {name: tensor for name, tensor in weights.items() if name not in kept}
        return shared, {name: weights[name] for name in weights if name in kept}

    def complete(self, key: str, weights: Tensors) -> bool:
        """Whether weights hold the kept names too, as a client's own state may."""
        return bool(self._kept[key]) and self._kept[key] <= weights.keys()

    def net(self, key: str, slot: str, weights: Tensors, kept: Tensors) -> Network:
        """The scratch network of a slot with weights laid in, in training mode."""
        if (key, slot) not in self._scratch:
            self._scratch[key, slot] = copy.deepcopy(self[key]).to(self.device)
        net = self._scratch[key, slot]
        self._lay(key, net, weights, kept)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(self._trained[key][name])
            parameter.grad = None
        net.train()
        return net

    def frozen(
        self, key: str, weights: Tensors, kept: Tensors, sweep: Sweep | None = None
    ) -> Frozen:
        """One more reference network, until `release`."""
        lent, free = self._lent.get(key, 0), self._frozen.setdefault(key, [])
        if lent == len(free):
            free.append(copy.deepcopy(self[key]).to(self.device).requires_grad_(False))
        self._lent[key] = lent + 1
        self._lay(key, free[lent], weights, kept)
        return Frozen(free[lent].eval(), sweep)

    def release(self) -> None:
        """Take the reference networks back for the next task."""
        self._lent.clear()

    def _lay(self, key: str, net: nn.Module, weights: Tensors, kept: Tensors) -> None:
        start = self._start[key]
        missing = [n for n in start if n not in weights and n not in self._kept[key]]
        unknown = [n for n in weights if n not in start]
        if missing or unknown:
            problem = f"misses {missing[0]!r}" if missing else f"has an unknown {unknown[0]!r}"
            raise KeyError(f"the weights for network {key!r} {problem}")
        net.load_state_dict({**start, **kept, **weights})

    def frozen_on_server(self, key: str, weights: Tensors) -> Frozen:
        """As `frozen`; with each batch's own BatchNorm statistics if clients keep theirs."""
        frozen = self.frozen(key, weights, {})
        if self.local_buffers:
            for path, module in frozen.net.named_modules():
                central = f"{path}.".startswith(frozen.net.central)
                if isinstance(module, BATCH_NORMS) and not central:
                    module.train()
                    module.momentum = 0.0
        return frozen


def _copies(net: nn.Module) -> Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
