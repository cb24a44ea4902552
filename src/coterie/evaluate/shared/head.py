"""A linear classifier on frozen representations: how every probe trains it.

The recipe is that of SimSiam's linear evaluation: SGD with learning rate 30 B / 256, batches of
B = 256, momentum 0.9, no weight decay, one cosine to zero over 100 epochs. Settled here:

- h is divided by its length. The learning rate then means the same for a backbone of any width and
  scale, and no labels are spent on choosing one.
- The gradient is the sum over a batch divided by 256, so that the rate is 30 B / 256 for short
  batches too, and every sample of an epoch weighs the same.
- Small data sets get more epochs, until there are 2,000 steps.
- The classifier starts at zero. Only the order of the samples is drawn.
"""

import math

import numpy as np
import torch
from torch import Tensor

from coterie.kit import Tensors, seeds

RATE, BATCH, MOMENTUM = 30.0, 256, 0.9
EPOCHS, STEPS = 100, 2000  # at least so many epochs, and so many steps


def fresh_head(classes: int, h: Tensor) -> Tensors:
    """Make the classifier before training: zeros."""
    return {"weight": h.new_zeros(classes, h.shape[1]), "bias": h.new_zeros(classes)}


def train_head(
    head: Tensors, h: Tensor, y: Tensor, draw: np.random.Generator, part: tuple[int, int] = (0, 1)
) -> Tensors:
    """Train a classifier; `part` (i, n) runs the i-th of n equal parts of the schedule."""
    weight, bias = head["weight"].clone(), head["bias"].clone()
    push, lift = torch.zeros_like(weight), torch.zeros_like(bias)
    index, parts = part
    steps = -(-len(y) // BATCH)  # an epoch
    epochs = -(-max(EPOCHS, -(-STEPS // steps)) // parts)
    wanted = torch.eye(len(bias), dtype=h.dtype, device=h.device)[y]
    for epoch in range(epochs):
        order = torch.from_numpy(draw.permutation(len(y))).to(h.device)
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            x = h[rows]
            # the gradient of the cross-entropy, written out: autograd takes three times as long
            error = ((x @ weight.T + bias).softmax(dim=1) - wanted[rows]) / BATCH
            push = MOMENTUM * push + error.T @ x
            lift = MOMENTUM * lift + error.sum(dim=0)
            done = (index + (epoch + step / steps) / epochs) / parts
            rate = RATE * (1.0 + math.cos(math.pi * done)) / 2
            weight -= rate * push
            bias -= rate * lift
    return {"weight": weight, "bias": bias}


def count_right(head: Tensors, h: Tensor, y: Tensor) -> int:
    """Count the samples that a classifier gets right."""
    if not len(y):
        return 0
    return int(((h @ head["weight"].T + head["bias"]).argmax(dim=1) == y).sum())


def choose_balanced(y: Tensor, share: float, seed: int) -> Tensor:
    """Draw a share of the samples, as many of each class: at least one, all if it has too few."""
    labels = y.cpu().numpy()
    draw, classes = seeds.generator(seed, "probe/labels"), np.unique(labels)
    each = max(1, round(share * len(labels) / len(classes)))
    chosen = [draw.permutation(np.flatnonzero(labels == label))[:each] for label in classes]
    return torch.from_numpy(np.sort(np.concatenate(chosen))).to(y.device)
