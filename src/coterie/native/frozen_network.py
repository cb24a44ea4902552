"""Networks without gradients in one call: convolutions with ReLU and pooling, then linear layers.

Between two calls of a small network's layers the interpreter and its libraries have to come back
into the processor's caches, which costs as much as the layers themselves. Where no gradient is
asked for, nothing has to be known of the layers in between.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.native import layers, switch
from coterie.native.interface import Batch, Layer
from coterie.native.library import loaded
from coterie.native.network_steps import Networks, Room, Step, Watch, find_room, list_steps


class OneCall:
    """Calls the kernel, and keeps what it was told for the next batch."""

    def __init__(self) -> None:
        self._plan: _Plan | None = None

    def __call__(self, networks: Networks, x: Tensor) -> list[Tensor] | None:
        """The outputs (samples, outputs) of every part of every network for a batch.

        None: call the modules, as kernels are off, gradients are recorded, or no kernel has these
        layers.
        """
        if torch.is_grad_enabled() or not (switch.kernels_on() and layers.takes(x)):
            return None
        if layers.hooked_everywhere():
            return None
        if self._plan is None or not self._plan.holds(networks, x):
            self._plan = _make_plan(networks, x)
        return None if self._plan is None else self._plan(x)

    def __reduce__(self) -> tuple[type["OneCall"], tuple[()]]:
        return OneCall, ()  # addresses are of no use to a copy


class _Plan:
    """What the kernel is told for batches of one shape, as long as the weights stay in place."""

    def __init__(self, networks: Networks, x: Tensor, steps: Sequence[Step], room: Room) -> None:
        self._shape, self._dtype, self._room = x.shape[1:], x.dtype, room
        self._watch = Watch(networks, steps)
        self._held: list[Tensor] = []  # what the kernel reads
        self._layers = (Layer * len(steps))()
        self._asked: list[Any] = []  # layers whose outputs are wanted
        for layer, step in zip(self._layers, steps, strict=True):
            weight, bias = step.layer.weight.detach(), layers.bias_of(step.layer).detach()
            self._held += (weight, bias)
            layer.weight, layer.bias = (one.data_ptr() for one in self._held[-2:])
            layer.outputs, layer.inputs = weight.shape[:2]
            layer.relu, layer.unit, layer.first = step.relu, step.unit, step.first
            if isinstance(step.layer, nn.Conv2d):
                layer.k, layer.padding = weight.shape[-1], int(step.layer.padding[0])
            if step.asked:
                self._asked.append(layer)

    def holds(self, networks: Networks, x: Tensor) -> bool:
        """Whether this is the plan of these networks for a batch; their weights may be others."""
        fits = x.shape[1:] == self._shape and x.dtype == self._dtype
        return fits and self._watch.unchanged(networks)

    def __call__(self, x: Tensor) -> list[Tensor]:
        memory, samples = layers.in_lanes(x), len(x)
        lanes = memory.shape[-1]
        outputs = []
        for layer in self._asked:
            outputs.append(torch.empty((samples, layer.outputs), dtype=self._dtype))
            layer.out = outputs[-1].data_ptr()
        batch = Batch(samples, lanes, *self._shape[1:], len(self._layers), *self._room)
        loaded().call("networks", self._dtype, memory, self._layers, batch)
        return outputs


def _make_plan(networks: Networks, x: Tensor) -> _Plan | None:
    """A plan for batches like `x`; None where a layer is not known or does not fit."""
    steps: list[Step] = []
    for parts in networks:
        network = list_steps(parts)
        if network is None:
            return None
        steps += network
    room = find_room(steps, x)
    return None if room is None else _Plan(networks, x, steps, room)
