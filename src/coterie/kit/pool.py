"""Nets: the networks of a method as scratch modules, built once and loaded many times.

Some names of a network never leave its client: what the objective calls private, and BatchNorm
statistics under `net.bn_buffers = "local"`. Everybody else sees only the shared names.
"""

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from coterie.core.bundle import Tensors
from coterie.kit.objective import Batch
from coterie.nets.heads import Network, Outputs
from coterie.nets.norm import BATCH_NORMS, batch_norm_buffers


class Frozen:
    """A reference network: eval mode, no gradients, called with a batch or with images."""

    def __init__(self, net: Network) -> None:
        self.net = net

    def __call__(self, batch: Batch | Tensor) -> Outputs:
        """The outputs for the first view of a batch."""
        x = batch.x if isinstance(batch, Batch) else batch
        with torch.no_grad():
            outputs: Outputs = self.net(x)
        return outputs

    def encode(self, x: Tensor) -> Tensor:
        """The representation h of images."""
        with torch.no_grad():
            return self.net.encode(x)


class Nets(Mapping[str, Network]):
    """The freshly initialised networks by key, and scratch copies of them on a device."""

    def __init__(
        self,
        initial: Mapping[str, Network],
        *,
        private: tuple[str, ...] = (),
        local_buffers: bool = False,
        device: str = "cpu",
    ) -> None:
        self._initial = {key: net.eval() for key, net in initial.items()}
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
            )
            for key, net in initial.items()
        }
        self.device = torch.device(device)
        self.local_buffers = local_buffers
        self._scratch: dict[tuple[str, str], Network] = {}
        self._frozen: dict[str, list[Network]] = {}
        self._lent: dict[str, int] = {}

    def __getitem__(self, key: str) -> Network:
        return self._initial[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._initial)

    def __len__(self) -> int:
        return len(self._initial)

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
            self._scratch[key, slot] = copy.deepcopy(self._initial[key]).to(self.device)
        net = self._scratch[key, slot]
        self._lay(key, net, weights, kept)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(self._trained[key][name])
            parameter.grad = None
        net.train()
        return net

    def frozen(self, key: str, weights: Tensors, kept: Tensors) -> Frozen:
        """One more reference network, until `release`."""
        lent, free = self._lent.get(key, 0), self._frozen.setdefault(key, [])
        if lent == len(free):
            free.append(copy.deepcopy(self._initial[key]).to(self.device).requires_grad_(False))
        self._lent[key] = lent + 1
        self._lay(key, free[lent], weights, kept)
        return Frozen(free[lent].eval())

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

    def statistics_from_batches(self, net: nn.Module) -> None:
        """Let BatchNorm use each batch's own statistics, where no shared ones exist."""
        if self.local_buffers:
            for module in net.modules():
                if isinstance(module, BATCH_NORMS):
                    module.train()
                    module.momentum = 0.0


def _copies(net: nn.Module) -> Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
