"""What all contenders share: the network's weights as a vector, the data, and taking turns.

The peers import this in environments of their own: torch and numpy are all that it needs.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from bare import BATCH, epoch, simple_cnn

__all__ = ["BATCH", "Samples", "Turns", "accuracy", "epoch", "flat", "put", "simple_cnn"]


class Turns:
    """Standard input and output, by which a contender is told to do a round and says it is done.

    Whatever else the process prints goes to standard error.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.path = ""

    def task(self) -> Any:
        """What there is to do, in the file that the first line names.

        The lists of images are more than a pipe holds, and who starts the contenders must not wait
        for one that waits for another.
        """
        self.path = json.loads(sys.stdin.readline())
        return json.loads(Path(self.path).read_text())

    def wait(self) -> str:
        """Block until it is this contender's turn; empty where there is none any more."""
        return sys.stdin.readline().strip()

    def next_round(self) -> None:
        """Block until it is this contender's turn, within a run that has rounds left."""
        if not self.wait():
            raise RuntimeError("the comparison was given up before the last round")

    def done(self, **said: Any) -> None:
        """Hand the turn back."""
        print(json.dumps(said), file=self._out, flush=True)


class Samples:
    """The training images in memory, as normalised floats."""

    def __init__(self, task: dict[str, Any]) -> None:
        images = np.load(task["x"], mmap_mode="r")
        self._labels = np.load(task["y"], mmap_mode="r")
        self._images = images
        self._mean, self._std = (
            torch.tensor(task[key]).reshape(1, -1, 1, 1) for key in ("mean", "std")
        )

    def share(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """The images and labels at some places."""
        x = torch.from_numpy(self._images[rows]).float().div_(255)
        return x.sub_(self._mean).div_(self._std), torch.from_numpy(self._labels[rows])


def flat(net: nn.Module) -> np.ndarray:
    """All weights, one after another."""
    vector: np.ndarray = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    return vector


def put(net: nn.Module, vector: np.ndarray) -> None:
    """Set all weights to copies."""
    length = sum(weight.numel() for weight in net.parameters())
    if length != len(vector):
        raise ValueError(f"the network has {length} weights, not {len(vector)}")
    nn.utils.vector_to_parameters(torch.from_numpy(vector).clone(), net.parameters())


@torch.no_grad()
def accuracy(vector: np.ndarray, x: Tensor, y: Tensor) -> float:
    """The share of images that a network with these weights classifies correctly."""
    net = simple_cnn().eval()
    put(net, vector)
    right = sum(
        int((net(x[start : start + 500]).argmax(1) == y[start : start + 500]).sum())
        for start in range(0, len(x), 500)
    )
    return right / len(x)
