"""FedAvg and FedAdam on heart disease as plain loops, from many starts: how much a start decides.

python benchmarks/papers/flamby-heart/starts.py
"""

import numpy as np
import torch

from coterie.data import datasets
from coterie.data.table import TableOptions

ROUNDS, STEPS, BATCH, STARTS = 15, 100, 4, 200
OWN = TableOptions(standardise="site")
FLAMBY, HEART = datasets.load("flamby-heart", table=OWN), datasets.load("heart", table=OWN)
TESTED = len(HEART.y_test)


def draw_starts(first: int, count: int) -> np.ndarray:
    """Weights and bias of one logit, as torch draws them under each seed."""
    starts = []
    for seed in range(first, first + count):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(FLAMBY.x_train.shape[1], 1)
        starts.append(torch.cat([layer.weight[0], layer.bias]).detach().numpy())
    return np.array(starts, np.float64)


def train(w: np.ndarray, rate: float, server: float = 0.0) -> np.ndarray:
    """All starts at once; with `server`, the rate of FedAdam there."""
    random, groups = np.random.default_rng(0), FLAMBY.groups
    first, second = np.zeros_like(w), np.zeros_like(w)
    for _ in range(ROUNDS):
        average = np.zeros_like(w)
        for hospital in range(len(groups.names)):
            rows = groups.train == hospital
            x = np.column_stack([FLAMBY.x_train[rows], np.ones(rows.sum())])
            local = train_locally(w.copy(), x, FLAMBY.y_train[rows], rate, random)
            average += rows.mean() * local
        if not server:
            w = average
            continue
        first = 0.9 * first + 0.1 * (average - w)
        second = 0.999 * second + 0.001 * (average - w) ** 2
        w = w + server * first / (np.sqrt(second) + 1e-8)
    return w


def train_locally(
    w: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float, random: np.random.Generator
) -> np.ndarray:
    taken = 0
    while taken < STEPS:
        order = np.stack([random.permutation(len(x)) for _ in w])
        for start in range(0, len(x), BATCH):
            if taken == STEPS:
                break
            rows = order[:, start : start + BATCH]
            logits = np.einsum("sbf,sf->sb", x[rows], w)
            wrong = 1 / (1 + np.exp(-logits)) - y[rows]
            w -= rate * np.einsum("sb,sbf->sf", wrong, x[rows]) / rows.shape[1]
            taken += 1
    return w


def score(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    answers = x @ w[:, :-1].T + w[:, -1] > 0
    return (answers == (y[:, np.newaxis] > 0)).mean(axis=0)


if __name__ == "__main__":
    one = draw_starts(1000, STARTS)
    kinds = {
        "one logit, torch's seeds 42 to 46": draw_starts(42, 5),
        f"one logit, {STARTS} starts": one,
        f"two logits, {STARTS} starts": one - draw_starts(2000, STARTS),
    }
    for name, rates in (("FedAvg", (0.001, 0.0)), ("FedAdam", (0.01, 0.01))):
        for kind, starts in kinds.items():
            w = train(starts, *rates)
            theirs = score(w, FLAMBY.x_test[:TESTED], FLAMBY.y_test[:TESTED])
            own = score(w, HEART.x_test, HEART.y_test)
            print(f"{name}, {kind}: {theirs.mean():.3f} ± {theirs.std():.3f}, own {own.mean():.3f}")
