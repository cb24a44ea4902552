"""MOON, or FedAvg, as a plain PyTorch loop: half of the clients, in one single-thread process.

Three networks as in the paper: the one that is trained, the global one and the client's previous
one, both frozen. Every batch goes through all three;

    loss = CE - mu log( e^{s_glob} / (e^{s_glob} + e^{s_prev}) ),   s = cos(z, z_glob or prev) / tau

Every image is cropped out of its reflected border and mirrored at random, one after another, out
of normalised tensors in memory (decoding and borders are done once, before the first round). A
client that has no previous model leaves the second term out. A line names the file of the global
weights; the answer is the sum of the clients' weights, each times its samples, in a file.
"""

import random

import numpy as np
import torch
from shared import BATCH, Samples, Turns, flat, put, simple_cnn
from torch import Tensor
from torch.nn import functional as F

EPOCHS, MU, TAU, BORDER = 10, 5.0, 0.5, 4


class Client:
    """A client's images with their border, its labels, and its last weights."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = F.pad(x, (BORDER,) * 4, mode="reflect"), y
        self.size = x.shape[-1]
        self.previous: np.ndarray | None = None

    def batch(self, rows: Tensor) -> Tensor:
        """Random windows of some images."""
        return torch.stack([self._window(self.x[row]) for row in rows.tolist()])

    def _window(self, image: Tensor) -> Tensor:
        top, left = random.randint(0, 2 * BORDER), random.randint(0, 2 * BORDER)
        window = image[:, top : top + self.size, left : left + self.size]
        return window.flip(-1) if random.random() < 0.5 else window


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor) -> Tensor:
    """MOON's second term without its weight."""
    near, far = (F.cosine_similarity(z, other, dim=-1) / TAU for other in (z_glob, z_prev))
    return F.cross_entropy(torch.stack([near, far], 1), torch.zeros(len(z), dtype=torch.long))


class Loop:
    """The local training of one client after another."""

    def __init__(self, moon: bool) -> None:
        self._moon = moon
        self.net, self._glob, self._prev = simple_cnn(), simple_cnn(), simple_cnn()
        for frozen in (self._glob, self._prev):
            frozen.eval().requires_grad_(False)

    def train(self, client: Client, weights: np.ndarray) -> int:
        """All local epochs; how many steps they had."""
        contrasted = self._moon and client.previous is not None
        put(self.net, weights)
        if contrasted:
            put(self._glob, weights)
            put(self._prev, client.previous)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
        steps = 0
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(client.y)).split(BATCH):
                x, y = client.batch(rows), client.y[rows]
                optimizer.zero_grad()
                z = self.net[:-1](x)
                loss = F.cross_entropy(self.net[-1](z), y)
                if contrasted:
                    loss = loss + MU * contrast(z, self._glob[:-1](x), self._prev[:-1](x))
                loss.backward()
                optimizer.step()
                steps += 1
        client.previous = flat(self.net)
        return steps


def main() -> None:
    """Take the clients; train them whenever asked."""
    torch.set_num_threads(1)
    turns = Turns()
    task = turns.task()
    torch.manual_seed(0)
    random.seed(0)
    samples = Samples(task)
    clients = [Client(*samples.share(rows)) for rows in task["clients"]]
    loop = Loop(task["moon"])
    while weights := turns.wait():
        start, total, steps = np.load(weights), 0.0, 0
        for client in clients:
            steps += loop.train(client, start)
            total = total + len(client.y) * flat(loop.net).astype(np.float64)
        np.save(task["out"], total)
        turns.done(steps=steps)


if __name__ == "__main__":
    main()
