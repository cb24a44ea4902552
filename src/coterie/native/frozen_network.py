"""Networks without gradients in one call: convolutions with ReLU and pooling, then linear layers.

Between two calls of a small network's layers the interpreter and its libraries have to come back
into the processor's caches, which costs as much as the layers themselves. Where no gradient is
asked for, nothing has to be known of the layers in between.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.native import layers, switch
from coterie.native.interface import Batch, Layer
from coterie.native.library import loaded
from coterie.native.unit_length import UnitLength

Networks = list[list[nn.Module]]  # each as parts, of which one takes what the one before gives

_SMALLEST = 2  # what can be pooled


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


def _leaves(module: nn.Module) -> list[nn.Module]:
    """The layers that a module calls one after another."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [leaf for child in module for leaf in _leaves(child)]


class _Step(NamedTuple):
    """A layer, with ReLU or not; a convolution always with ReLU and 2 x 2 pooling."""

    layer: nn.Conv2d | nn.Linear
    relu: bool
    first: bool  # whether it takes the batch: a network begins
    asked: bool = False  # whether its outputs are wanted
    unit: bool = False  # whether they are divided by their length


def _steps(parts: Sequence[nn.Module]) -> list[_Step] | None:
    """A network of convolutions, a Flatten and linear layers, step by step; None for any other."""
    steps: list[_Step] = []
    flat = False
    if not all(layers.is_plain(module) for part in parts for module in part.modules()):
        return None
    for part in parts:
        rest = _leaves(part)
        while rest:
            match rest:
                case [nn.Conv2d() as layer, nn.ReLU(), nn.MaxPool2d() as pool, *after] if (
                    not flat and layers.fusable(layer, pool)
                ):
                    steps.append(_Step(layer, True, not steps))
                case [nn.Flatten(start_dim=1, end_dim=-1), *after] if steps and not flat:
                    flat = True
                case [nn.Linear() as layer, nn.ReLU(), *after] if flat:
                    steps.append(_Step(layer, True, not steps))
                case [nn.Linear() as layer, *after] if flat:
                    steps.append(_Step(layer, False, not steps))
                case [UnitLength(), *after] if _may_be_unit(steps):
                    steps[-1] = steps[-1]._replace(unit=True)
                case _:
                    return None
            rest = after
        if not steps or steps[-1].asked or not isinstance(steps[-1].layer, nn.Linear):
            return None  # the part ends with something else than a linear layer of its own
        steps[-1] = steps[-1]._replace(asked=True)
    return steps


def _may_be_unit(steps: Sequence[_Step]) -> bool:
    """Whether the last step is a linear layer of the same part, with its length left alone."""
    if not steps or not isinstance(steps[-1].layer, nn.Linear):
        return False
    return not (steps[-1].asked or steps[-1].unit)


class _Room(NamedTuple):
    """The most entries of a sample that the kernel has to keep between two layers."""

    outputs: int
    bordered: int  # inputs of a convolution inside their padding


def _room_for(steps: Sequence[_Step], x: Tensor) -> _Room | None:
    """The room that a batch needs on its way; None where a layer does not fit the one before."""
    most = bordered = channels = rows = columns = 0
    for layer, _, first, *_ in steps:
        weight, bias = layer.weight, layers.bias_of(layer)
        if weight.dtype != x.dtype or bias.dtype != x.dtype or not switch.takes(weight, bias):
            return None
        if not (weight.is_contiguous() and bias.is_contiguous()):
            return None  # the plan would keep a copy, and miss what changes in the original
        if first:
            channels, rows, columns = x.shape[1:]
        if isinstance(layer, nn.Linear):
            if layer.in_features != channels * rows * columns:
                return None
            channels, rows, columns = layer.out_features, 1, 1
        else:
            side, edge = layer.kernel_size[0], int(layer.padding[0])
            rows, columns = rows + 2 * edge, columns + 2 * edge
            if layer.in_channels != channels or min(rows, columns) - side + 1 < _SMALLEST:
                return None
            bordered = max(bordered, channels * rows * columns if edge else 0)
            rows, columns = ((length - side + 1) // 2 for length in (rows, columns))
            channels = layer.out_channels
        most = max(most, channels * rows * columns)
    return _Room(most, bordered)


class _Plan:
    """What the kernel is told for batches of one shape, as long as the weights stay in place."""

    def __init__(self, networks: Networks, x: Tensor, steps: Sequence[_Step], room: _Room) -> None:
        self._networks = [list(parts) for parts in networks]
        self._shape, self._dtype, self._room = x.shape[1:], x.dtype, room
        modules = [module for parts in networks for part in parts for module in part.modules()]
        self._rows = [module for module in modules if isinstance(module, nn.Sequential)]
        self._watch = layers.PlainWatch(modules)
        self._known = [step.layer for step in steps]
        self._inside = self._look_inside()
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

    def _look_inside(self) -> list[object]:
        """What differs where a layer was exchanged, or weights moved to another address."""
        children: list[object] = [child for row in self._rows for child in row._modules.values()]
        weights = [one for layer in self._known for one in layer._parameters.values()]
        return children + [None if one is None else one.data_ptr() for one in weights]

    def holds(self, networks: Networks, x: Tensor) -> bool:
        """Whether this is the plan of these networks for a batch; their weights may be others."""
        if x.shape[1:] != self._shape or x.dtype != self._dtype or networks != self._networks:
            return False
        return self._look_inside() == self._inside and self._watch.still_plain()

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
    steps: list[_Step] = []
    for parts in networks:
        network = _steps(parts)
        if network is None:
            return None
        steps += network
    room = _room_for(steps, x)
    return None if room is None else _Plan(networks, x, steps, room)
