"""One contender of `round.py`: a bare PyTorch loop, what a FedAvg round costs with nothing around.

The first line of standard input says which clients this process has; every further line is a
round, answered with a line when one epoch has been trained on each of them.
"""

import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BATCH = 64


def simple_cnn() -> nn.Module:
    """The network of the comparison: simple-cnn with projector and classifier."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        *(nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256), nn.Linear(256, 10)),
    )


def epoch(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    """One epoch of SGD; how many steps it had."""
    steps = 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        steps += 1
    return steps


def main() -> None:
    """Take the clients; train them whenever asked."""
    torch.set_num_threads(1)
    task = json.loads(sys.stdin.readline())
    images, labels = np.load(task["x"], mmap_mode="r"), np.load(task["y"], mmap_mode="r")
    mean, std = (torch.tensor(task[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    start = simple_cnn().state_dict()
    net = simple_cnn()
    for _ in sys.stdin:
        for rows in task["clients"]:
            net.load_state_dict(start)
            x = torch.from_numpy(images[rows]).float().div_(255).sub_(mean).div_(std)
            epoch(net, x, torch.from_numpy(labels[rows]))
        print("done", flush=True)


if __name__ == "__main__":
    main()
