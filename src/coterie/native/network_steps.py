"""Networks of convolutions and linear layers as rows of steps, as the kernels take them."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from coterie.native import layers, switch
from coterie.native.unit_length import UnitLength

Networks = list[list[nn.Module]]  # each as parts, of which one takes what the one before gives

_SMALLEST = 2  # what can be pooled


def _leaves(module: nn.Module) -> list[nn.Module]:
    """The layers that a module calls one after another."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [leaf for child in module for leaf in _leaves(child)]


class Step(NamedTuple):
    """A layer, with ReLU or not; a convolution always with ReLU and 2 x 2 pooling."""

    layer: nn.Conv2d | nn.Linear
    relu: bool
    first: bool  # whether it takes the batch: a network begins
    asked: bool = False  # whether its outputs are wanted
    unit: bool = False  # whether they are divided by their length


def list_steps(parts: Sequence[nn.Module]) -> list[Step] | None:
    """A network of convolutions, a Flatten and linear layers, step by step; None for any other."""
    steps: list[Step] = []
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
                    steps.append(Step(layer, True, not steps))
                case [nn.Flatten(start_dim=1, end_dim=-1), *after] if steps and not flat:
                    flat = True
                case [nn.Linear() as layer, nn.ReLU(), *after] if flat:
                    steps.append(Step(layer, True, not steps))
                case [nn.Linear() as layer, *after] if flat:
                    steps.append(Step(layer, False, not steps))
                case [UnitLength(), *after] if _may_be_unit(steps):
                    steps[-1] = steps[-1]._replace(unit=True)
                case _:
                    return None
            rest = after
        if not steps or steps[-1].asked or not isinstance(steps[-1].layer, nn.Linear):
            return None  # the part ends with something else than a linear layer of its own
        steps[-1] = steps[-1]._replace(asked=True)
    return steps


def _may_be_unit(steps: Sequence[Step]) -> bool:
    """Whether the last step is a linear layer of the same part, with its length left alone."""
    if not steps or not isinstance(steps[-1].layer, nn.Linear):
        return False
    return not (steps[-1].asked or steps[-1].unit)


class Room(NamedTuple):
    """The most entries of a sample between two layers."""

    outputs: int
    bordered: int  # inputs of a convolution inside their padding


def find_room(steps: Sequence[Step], x: Tensor) -> Room | None:
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
    return Room(most, bordered)


class Watch:
    """Tells whether networks are as they were when a plan was made for them; weights may change."""

    def __init__(self, networks: Networks, steps: Sequence[Step]) -> None:
        self._networks = [list(parts) for parts in networks]
        modules = [module for parts in networks for part in parts for module in part.modules()]
        self._rows = [module for module in modules if isinstance(module, nn.Sequential)]
        self._plain = layers.PlainWatch(modules)
        self._known = [step.layer for step in steps]
        self._inside = self._look_inside()

    def _look_inside(self) -> list[object]:
        """List what differs where a layer was exchanged, or weights moved to another address."""
        children: list[object] = [child for row in self._rows for child in row._modules.values()]
        weights = [one for layer in self._known for one in layer._parameters.values()]
        return children + [None if one is None else one.data_ptr() for one in weights]

    def unchanged(self, networks: Networks) -> bool:
        """Whether these are the networks, with the same layers at the same addresses."""
        if networks != self._networks:
            return False
        return self._look_inside() == self._inside and self._plain.still_plain()
