"""One contender of `residual.py`: SimSiam in a bare PyTorch loop, eager and in float32.

The first line of standard input says which clients this process has and which network; every
further line is a round, answered with a line when one epoch has been trained on each of them. The
images are normalised before the rounds and both views of a batch are the batch itself: to make
views costs this loop nothing.
"""

import json
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

STAGES = {"resnet8": (16, (1, 1, 1)), "resnet18": (64, (2, 2, 2, 2))}


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after) for _ in range(2)])
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            narrow = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(F(x) + shortcut(x))."""
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet(name: str) -> tuple[nn.Module, int]:
    """The backbone with the stem for small images, and its width."""
    width, blocks = STAGES[name]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)]
    layers.append(nn.ReLU())
    before = width
    for number, count in enumerate(blocks):
        after = width * 2**number
        for position in range(count):
            layers.append(Block(before, after, 2 if number and not position else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), before


def simsiam(name: str) -> nn.ModuleList:
    """Encoder with projector, and predictor."""
    backbone, width = resnet(name)
    projector = [nn.Linear(width, 2048, bias=False), nn.BatchNorm1d(2048), nn.ReLU()]
    projector += [nn.Linear(2048, 2048, bias=False), nn.BatchNorm1d(2048, affine=False)]
    predictor = [nn.Linear(2048, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()]
    predictor += [nn.Linear(512, 2048)]
    return nn.ModuleList([nn.Sequential(backbone, *projector), nn.Sequential(*predictor)])


def epoch(net: nn.ModuleList, x: Tensor, batch: int) -> None:
    """One epoch of SGD."""
    encoder, predictor = net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for rows in torch.randperm(len(x)).split(batch):
        optimizer.zero_grad()
        views = x[rows], x[rows]
        z = [encoder(view) for view in views]
        p = [predictor(one) for one in z]
        distances = [-F.cosine_similarity(p[k], z[1 - k].detach()).mean() for k in range(2)]
        (sum(distances) / 2).backward()
        optimizer.step()


def main() -> None:
    """Take the clients; train them whenever asked."""
    torch.set_num_threads(1)
    task = json.loads(sys.stdin.readline())
    images = np.load(task["x"], mmap_mode="r")
    mean, std = (torch.tensor(task[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    net = simsiam(task["net"])
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    shards = [torch.from_numpy(images[rows]).float() for rows in task["clients"]]
    shards = [x.div_(255).sub_(mean).div_(std) for x in shards]
    for _ in sys.stdin:
        for x in shards:
            net.load_state_dict(start)
            epoch(net, x, task["batch"])
        print("done", flush=True)


if __name__ == "__main__":
    main()
