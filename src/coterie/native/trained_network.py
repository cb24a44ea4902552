"""Networks that are trained, in one call forward and one back.

As a chain of torch operations a small network spends a third of a step between them: in the
interpreter, in autograd, in tensors that are made and freed. Here a whole network is one
differentiable function of its weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.native import layers, switch
from coterie.native.interface import Batch, Trained
from coterie.native.library import loaded
from coterie.native.network_steps import Step, Watch, find_room, list_steps


class TrainedCall:
    """Calls the kernels, and keeps what they were told for the next batch."""

    def __init__(self) -> None:
        self._plan: _TrainedPlan | None = None

    def __call__(self, parts: list[nn.Module], x: Tensor) -> tuple[Tensor, ...] | None:
        """The outputs (samples, outputs) of every part for a batch, each with its gradient.

        None: call the modules, as kernels are off, no gradient is recorded, some weights are not
        trained, the gradient of the batch is asked for too, or no kernel has these layers.
        """
        if not (torch.is_grad_enabled() and switch.kernels_on()) or x.requires_grad:
            return None
        if not layers.takes(x) or layers.hooked_everywhere():
            return None
        if self._plan is None or not self._plan.holds(parts, x):
            self._plan = _make_plan(parts, x)
        if self._plan is None:
            return None
        weights = self._plan.weights()
        if not all(weight.requires_grad for weight in weights):
            return None
        outputs: tuple[Tensor, ...] = _TrainedNetwork.apply(x, self._plan, *weights)  # type: ignore[no-untyped-call]
        return outputs

    def __reduce__(self) -> tuple[type["TrainedCall"], tuple[()]]:
        return TrainedCall, ()  # addresses are of no use to a copy


def _weights_of(step: Step) -> tuple[Tensor, Tensor]:
    """The weights and biases of a layer that has both."""
    assert step.layer.bias is not None
    return step.layer.weight, step.layer.bias


class _TrainedPlan:
    """What the kernels are told for batches of one shape, as long as the weights stay in place."""

    def __init__(self, parts: list[nn.Module], x: Tensor, steps: list[Step], most: int) -> None:
        self.steps, self._most = steps, most
        self._shape, self._dtype = x.shape[1:], x.dtype
        self._watch = Watch([parts], steps)
        self.layers = (Trained * len(steps))()
        self.asked = [place for place, step in enumerate(steps) if step.asked]
        self.kept = self.places = 0
        self.sizes: list[int] = []  # of the weights and biases, one after another
        _, rows, columns = self._shape
        for layer, step in zip(self.layers, steps, strict=True):
            weight, bias = _weights_of(step)
            layer.weight, layer.bias = weight.data_ptr(), bias.data_ptr()
            layer.outputs, layer.inputs = weight.shape[:2]
            layer.relu, layer.unit = step.relu, step.unit
            layer.height, layer.width, layer.slopes = rows, columns, sum(self.sizes)
            layer.kept, layer.places = self.kept, self.places
            self.sizes += [weight.numel(), bias.numel()]
            if isinstance(step.layer, nn.Linear):
                layer.height = layer.width = rows = columns = 1
            else:
                layer.k = weight.shape[-1]
                rows, columns = ((side - layer.k + 1) // 2 for side in (rows, columns))
                self.places += layer.outputs * rows * columns
            self.kept += layer.outputs * rows * columns + step.unit

    def weights(self) -> list[Tensor]:
        """The weights and biases, as the layers have them now."""
        return [one for step in self.steps for one in _weights_of(step)]

    def holds(self, parts: list[nn.Module], x: Tensor) -> bool:
        """Whether this is the plan of these parts for a batch; their weights may be others."""
        fits = x.shape[1:] == self._shape and x.dtype == self._dtype
        return fits and self._watch.unchanged([parts])

    def reads(self, weights: Sequence[Tensor]) -> bool:
        """Whether the kernels read these weights and biases, by their addresses."""
        known = [address for layer in self.layers for address in (layer.weight, layer.bias)]
        return [one.data_ptr() for one in weights] == known

    def batch(self, samples: int, lanes: int) -> Any:
        """Describe a batch to the kernels."""
        return Batch(samples, lanes, *self._shape[1:], len(self.layers), self._most, 0)


def _make_plan(parts: list[nn.Module], x: Tensor) -> _TrainedPlan | None:
    """A plan for batches like `x`; None where a layer is not known or does not fit."""
    steps = list_steps(parts)
    room = find_room(steps, x) if steps else None
    if steps is None or room is None or room.bordered:
        return None
    if any(step.layer.bias is None for step in steps):
        return None
    return _TrainedPlan(parts, x, steps, room.outputs)


class _TrainedNetwork(torch.autograd.Function):
    """The outputs of all parts as one function of the weights; the batch is a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: _TrainedPlan, *weights: Tensor) -> tuple[Tensor, ...]:
        memory = layers.in_lanes(x, summed=True)
        samples, lanes = len(x), memory.shape[-1]
        kept = torch.empty(plan.kept * lanes, dtype=x.dtype)
        chosen = torch.empty(plan.places * lanes, dtype=torch.uint8)
        outputs = []
        for place in plan.asked:
            layer = plan.layers[place]
            outputs.append(torch.empty((samples, layer.outputs), dtype=x.dtype))
            layer.out = outputs[-1].data_ptr()
        batch = plan.batch(samples, lanes)
        loaded().call("trained_forward", x.dtype, memory, plan.layers, batch, kept, chosen)
        ctx.save_for_backward(x, memory, kept, chosen, *weights)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, memory, kept, chosen, *weights = ctx.saved_tensors
        plan = ctx.plan
        # what is returned will be differentiated too, or weights have moved since the forward pass
        if torch.is_grad_enabled() or not plan.reads(weights):
            return None, None, *_differentiate(plan.steps, x, weights, gradients)
        held = [None if one is None else one.contiguous() for one in gradients]
        reached = 0  # layers that a loss depends on
        for place, gradient in zip(plan.asked, held, strict=True):
            plan.layers[place].out_gradient = None if gradient is None else gradient.data_ptr()
            reached = reached if gradient is None else place + 1
        flat = torch.empty(sum(plan.sizes), dtype=memory.dtype)
        batch = plan.batch(len(x), memory.shape[-1])
        given = (memory, plan.layers, batch, kept, chosen, flat)
        loaded().call("trained_backward", memory.dtype, *given)
        slopes = [
            part.view_as(weight)
            for part, weight in zip(torch.split(flat, plan.sizes), weights, strict=True)
        ]
        beyond = [None] * (len(weights) - 2 * reached)
        return None, None, *slopes[: 2 * reached], *beyond


def _differentiate(
    steps: Sequence[Step],
    x: Tensor,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """The same gradients by torch, with a graph of their own where one is recorded."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        values, outputs = x, []
        for step, weight, bias in zip(steps, weights[::2], weights[1::2], strict=True):
            if isinstance(step.layer, nn.Conv2d):
                values = F.max_pool2d(F.relu(F.conv2d(values, weight, bias)), 2)
                continue
            values = F.linear(values.flatten(1), weight, bias)
            values = F.relu(values) if step.relu else values
            values = F.normalize(values, dim=-1) if step.unit else values
            outputs += [values] if step.asked else []
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    given, slopes = [o for o, _ in pairs], [g for _, g in pairs]
    return torch.autograd.grad(given, weights, slopes, create_graph=again, allow_unused=True)
