"""Frozen networks in one call: convolutions with ReLU and pooling, then linear layers.

Between two calls of a small network's layers the interpreter and its libraries have to come back
into the processor's caches, which costs as much as the layers themselves. Where no gradient is
asked for, nothing has to be known of the layers in between.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.native.layers import in_lanes
from coterie.native.library import loaded

_NUMBERS = 9  # of a layer, as the kernel reads them
_OUT = 2  # which of them says where its outputs go
_SMALLEST = 2  # what can be pooled


class Link(NamedTuple):
    """A linear layer, with or without ReLU."""

    layer: nn.Linear
    relu: bool


class Row(NamedTuple):
    """A network: convolutions, each with ReLU and 2 x 2 max-pooling, and linear layers after them.

    The outputs at the end of every part of the linear layers are asked for.
    """

    convolutions: Sequence[nn.Conv2d]
    parts: Sequence[Sequence[Link]]


def links_of(part: nn.Module) -> list[Link] | None:
    """The linear layers that a part of a network consists of; None where it has others."""
    links: list[Link] = []
    for module in part if isinstance(part, nn.Sequential) else (part,):
        if isinstance(module, nn.Linear):
            links.append(Link(module, relu=False))
        elif isinstance(module, nn.ReLU) and links and not links[-1].relu:
            links[-1] = links[-1]._replace(relu=True)
        else:
            return None
    return links or None


class Chain:
    """Networks that are given the same batch: the outputs of their parts, one after the other.

    Later changes of the weights in their place are seen.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, rows: Sequence[Row]) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self._held: list[Tensor] = []  # keeps the weights where they are
        self._numbers: list[int] = []
        self._most = self._bordered = 0  # entries of a sample: outputs, and inputs with a border
        self._ends: list[tuple[int, int]] = []  # where a part's last layer is, and its outputs
        for row in rows:
            start = len(self._numbers)
            entries = self._convolve(row.convolutions)
            for part in row.parts:
                entries = self._link(part, entries)
            self._numbers[start + _NUMBERS - 1] = 1
        self._links = (ctypes.c_ssize_t * len(self._numbers))(*self._numbers)
        self._place = ctypes.addressof(self._links)

    def takes(self, x: Tensor) -> bool:
        """Whether a batch is like the one that this was made for."""
        return x.shape[1:] == self.shape and x.dtype == self.dtype

    def __call__(self, x: Tensor) -> list[Tensor]:
        """(samples, outputs) for every part."""
        if not self.takes(x):
            raise ValueError(f"a batch {tuple(x.shape)} of {x.dtype} for {self.shape}")
        memory, samples = in_lanes(x), x.shape[0]
        lanes = memory.shape[-1]
        found = []
        for place, outputs in self._ends:
            found.append(torch.empty((samples, outputs), dtype=self.dtype))
            self._links[place] = found[-1].data_ptr()
        shape = (lanes, samples, lanes, *self.shape[1:])
        sizes = (self._most * lanes, self._bordered * lanes)
        count = len(self._numbers) // _NUMBERS
        loaded().call("chain", self.dtype, memory, *shape, *sizes, self._place, count)
        return found

    def _convolve(self, layers: Sequence[nn.Conv2d]) -> int:
        """Add the convolutions; the entries that they leave of a sample."""
        channels, rows, columns = self.shape
        for layer in layers:
            outputs, inputs, k, _ = layer.weight.shape
            padding = int(layer.padding[0])
            rows, columns = rows + 2 * padding, columns + 2 * padding
            if inputs != channels or min(rows, columns) - k + 1 < _SMALLEST:
                raise ValueError(
                    f"weights {tuple(layer.weight.shape)} do not fit {channels} channels of "
                    f"{rows} x {columns}"
                )
            if padding:
                self._bordered = max(self._bordered, inputs * rows * columns)
            self._add(layer, inputs, outputs, k, padding, True)
            rows, columns, channels = (rows - k + 1) // 2, (columns - k + 1) // 2, outputs
            self._most = max(self._most, channels * rows * columns)
        return channels * rows * columns

    def _link(self, part: Sequence[Link], entries: int) -> int:
        """Add linear layers; the entries that they leave of a sample."""
        for link in part:
            outputs, inputs = link.layer.weight.shape
            if inputs != entries:
                raise ValueError(f"a linear layer of {inputs} inputs does not fit {entries}")
            self._add(link.layer, inputs, outputs, 0, 0, link.relu)
            entries, self._most = outputs, max(self._most, outputs)
        self._ends.append((len(self._numbers) - _NUMBERS + _OUT, entries))
        return entries

    def _add(self, layer: nn.Conv2d | nn.Linear, *rest: int) -> None:
        weight, bias = layer.weight.detach(), layer.bias
        if weight.dtype != self.dtype or weight.device.type != "cpu":
            raise ValueError(f"weights of {weight.dtype} on {weight.device} for {self.dtype}")
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        self._held += (weight.contiguous(), bias.contiguous())
        self._numbers += (*(one.data_ptr() for one in self._held[-2:]), 0, *rest, 0)
