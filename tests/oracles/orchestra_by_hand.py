"""Orchestra, sample by sample and in double precision: losses, clusterings, local training."""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from federation import Tables, normal
from torch import Tensor
from torch.nn import functional as F
from two_views import TwoViews, shift, windows

from coterie.core import seeds
from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.core.task import Round
from coterie.data.augment import AUGMENTS
from coterie.kit.clustering import EqualShares
from coterie.nets.heads import Network

LAMBDA, T, EMA = 25.0, 0.1, 0.996
ITERATIONS, ON_SERVER = 10, 100  # of Sinkhorn's algorithm
FIELDS: dict[str, Any] = {"clusters": 10, "local_clusters": 4, "memory": 24, "server_steps": 8}
VIEWS = ("train", "second", "train")
SHARES, SERVER = (EqualShares(LAMBDA, most) for most in (ITERATIONS, ON_SERVER))
WIDTH = 8


def orchestra(folder: Path, tables: Tables | None = None, **fields: Any) -> TwoViews:
    """Three clients with small memories; fields of the method change."""
    return TwoViews(folder, "orchestra", "rotation", tables, **{**FIELDS, **fields})


def clouds(seed: int, rows: int, entries: int = WIDTH) -> Tensor:
    """Unit rows in a few clouds."""
    centres = 2.0 * normal(seed, 5, entries)
    found = centres[torch.arange(rows) % 5] + 0.5 * normal(seed + 1, rows, entries)
    return F.normalize(found, dim=1)


def unit(x: np.ndarray) -> np.ndarray:
    return np.stack([row / np.sqrt((row * row).sum()) for row in x])


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum()


def naive_scaling(
    rows: np.ndarray, centroids: np.ndarray, iterations: int, lam: float = LAMBDA
) -> tuple[np.ndarray, int]:
    """The softmax of lambda x . c over centroids, scaled to equal shares; and the iterations taken.

    An iteration sets column factors r so that columns sum to 1 / K, then row factors c so that rows
    sum to 1 / N. In iterations 0, 10, 20, ... it ends once sum |c / c_new - 1| < 1e-2.
    """
    p = np.stack([softmax(lam * centroids.astype(np.float64) @ x.astype(np.float64)) for x in rows])
    size, count = p.shape
    c = np.full(size, 1.0 / size)
    for done in range(iterations):
        r = np.array([1.0 / count / sum(p[:, k] * c) for k in range(count)])
        c_new = np.array([1.0 / size / sum(p[i] * r) for i in range(size)])
        change = sum(abs(c / c_new - 1.0))
        c = c_new
        if done % 10 == 0 and change < 1e-2:
            break
    return size * c[:, None] * p * r, done + 1


def naive_shares(
    rows: np.ndarray, centroids: np.ndarray, iterations: int = ITERATIONS
) -> np.ndarray:
    """Rows that sum to 1, over centroids that are used alike."""
    return naive_scaling(rows, centroids, iterations)[0]


def naive_cluster(
    rows: np.ndarray, count: int, iterations: int, generator: np.random.Generator
) -> np.ndarray:
    """Rows as seeds, then assignment to the largest share and means of length one."""
    centroids = rows[generator.choice(len(rows), count, replace=False)]
    for _ in range(iterations):
        places = naive_shares(rows, centroids).argmax(axis=1)
        strays = generator.integers(len(rows), size=count)
        fresh = []
        for k in range(count):
            mine = rows[places == k]
            fresh.append(mine.sum(axis=0) if len(mine) else rows[strays[k]])
        centroids = unit(np.stack(fresh))
    return centroids


def naive_disagreement(rows: np.ndarray, centroids: np.ndarray, goals: np.ndarray) -> float:
    """-mean cos(goals, softmax(x . c / T))."""
    total = 0.0
    for x, goal in zip(rows, goals, strict=True):
        p = softmax(centroids @ x / T)
        total -= (goal @ p) / np.sqrt((goal @ goal) * (p @ p)) / len(rows)
    return total


def naive_consistency(t: Tensor, o: Tensor, centroids: Tensor) -> Tensor:
    """-mean sum_k softmax(C t / T)_k log softmax(C o / T)_k."""
    total = torch.zeros((), dtype=o.dtype)
    for i in range(len(t)):
        goal = (centroids @ t[i] / T).exp()
        said = (centroids @ o[i] / T).exp()
        total = total - ((goal / goal.sum()) * (said / said.sum()).log()).sum()
    return total / len(t)


def double_target(fed: TwoViews, weights: Tensors) -> Network:
    """The target in double precision and training mode."""
    net = copy.deepcopy(fed.nets["target"])
    net.load_state_dict({**net.state_dict(), **weights})
    return net.double().train()


class Trained(NamedTuple):
    """What local training by hand came to."""

    online: Tensors
    target: Tensors
    memory: Tensor
    cluster: float  # the mean of the two terms over samples
    rotation: float


def local_training(
    fed: TwoViews,
    client: int,
    place: Round,
    model: Tensors,
    target: Tensors,
    memory: Tensor,
    centroids: Tensor | None,
) -> Trained:
    """The target follows first, then both losses, then the step; every t goes into the memory."""
    online, slow = fed.double(model), double_target(fed, target)
    local, rows = fed.parts.local, list(memory.double())
    batches = fed.shard(client).batches(
        local, VIEWS, lambda what: place.generator(f"train/{what}", client)
    )
    told: list[list[float]] = [[], []]
    with seeds.scoped(place.torch_seed(client)):
        for window in windows(batches, local.accumulate):
            fast = dict(online.named_parameters())
            with torch.no_grad():
                for name, weight in slow.named_parameters():
                    weight.copy_(EMA * weight + (1.0 - EMA) * fast[name])
            total: dict[str, Tensor] = {}
            for batch in window:
                t = slow(batch.views[0].double()).z.detach()
                t = t / t.norm(dim=1, keepdim=True)
                terms = _terms(online, batch, t, centroids)
                for values, term in zip(told, terms, strict=True):
                    values += [float(term.detach())] * len(batch)
                found = torch.autograd.grad(terms[0] + terms[1], list(fast.values()))
                for name, slope in zip(fast, found, strict=True):
                    total[name] = total.get(name, torch.zeros_like(slope)) + slope / len(window)
                rows += list(t)
            shift(online, total, local.rate(place))
    kept = torch.stack(rows[-len(memory) :])
    means = [float(np.mean(values)) for values in told]
    return Trained(online.state_dict(), slow.state_dict(), kept, *means)


def _terms(
    net: Network, batch: Batch, t: Tensor, centroids: Tensor | None
) -> tuple[Tensor, Tensor]:
    o = net(batch.views[1].double()).z
    o = o / o.norm(dim=1, keepdim=True)
    quarters = torch.randint(4, (len(batch),)).tolist()
    pictures = [
        np.rot90(x, a, axes=(1, 2)) for x, a in zip(batch.views[2].numpy(), quarters, strict=True)
    ]
    p = net(torch.from_numpy(np.stack(pictures)).double()).p
    assert p is not None
    turns = torch.stack(
        [-(row[a].exp() / row.exp().sum()).log() for row, a in zip(p, quarters, strict=True)]
    )
    if centroids is None:
        return torch.zeros((), dtype=torch.float64), turns.mean()
    return naive_consistency(t, o, centroids.double()), turns.mean()


@torch.no_grad()
def filled(
    fed: TwoViews, client: int, place: Round, target: Tensors, size: int
) -> tuple[Tensor, int]:
    """The first memory: t of batches of drawn views until it is full; and the epochs it took."""
    net, rows, epoch = double_target(fed, target), list[Tensor](), 0
    while len(rows) < size:
        order = place.generator(f"fill/order/{epoch}", client).permutation(len(fed.shard(client)))
        for batch in _epoch(fed, client, place, epoch, order):
            t = net(batch.double()).z
            rows += list(t / t.norm(dim=1, keepdim=True))
        epoch += 1
    return torch.stack(rows[:size]), epoch


def _epoch(fed: TwoViews, client: int, place: Round, epoch: int, order: np.ndarray) -> list[Tensor]:
    """The views of one epoch, cut into batches; a last one of one joins the one before."""
    shard, size = fed.shard(client), fed.parts.local.batch_size
    transform = AUGMENTS[fed.experiment.config.data.augment]()
    table = transform.draw(len(shard), place.generator(f"fill/view/0/{epoch}", client))
    plain = torch.cat([batch.x for batch in shard.sweep()])
    rows = torch.from_numpy(order)
    parts = list(rows.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return [transform(plain[part], part, table) for part in parts]
