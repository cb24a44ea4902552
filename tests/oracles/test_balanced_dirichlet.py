"""The balanced Dirichlet partition against its rule written out one number at a time."""

import numpy as np
import pytest

from coterie.core import seeds
from coterie.data.heterogeneity import measure
from coterie.data.partitions.balanced_dirichlet import BalancedDirichlet


def naive(labels: list[int], classes: int, rule: BalancedDirichlet, seed: int) -> list[list[int]]:
    """Scale to the margins in turn, round down, deal what is left: counts by class and client."""
    n, N = rule.clients, len(labels)
    A = seeds.generator(seed, "partition").dirichlet([rule.beta] * n, size=classes).tolist()
    totals = [labels.count(k) for k in range(classes)]
    sizes = [N // n + (j < N % n) for j in range(n)]
    for _ in range(100):
        for k in range(classes):
            A[k] = [a * totals[k] / sum(A[k]) for a in A[k]]
        for j in range(n):
            column = sum(A[k][j] for k in range(classes))
            for k in range(classes):
                A[k][j] *= sizes[j] / column
    for k in range(classes):
        A[k] = [a * min(1.0, totals[k] / sum(A[k])) for a in A[k]]
    counts = [[int(a) for a in row] for row in A]
    cells = [(k, j) for k in range(classes) for j in range(n)]
    by_fraction = sorted(cells, key=lambda cell: int(A[cell[0]][cell[1]]) - A[cell[0]][cell[1]])
    for largest in (1, N):
        for k, j in by_fraction if largest == 1 else cells:
            left = totals[k] - sum(counts[k])
            wanting = sizes[j] - sum(row[j] for row in counts)
            counts[k][j] += min(largest, left, wanting)
    return counts


def dealt_counts(
    rule: BalancedDirichlet, labels: np.ndarray, classes: int, seed: int
) -> np.ndarray:
    dealt = rule.deal(labels, classes, seed)
    assert np.array_equal(np.sort(np.concatenate(list(dealt.values()))), np.arange(len(labels)))
    return np.array([np.bincount(labels[share], minlength=classes) for share in dealt.values()])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("clients", "beta"), [(2, 0.5), (5, 0.1), (10, 0.5), (7, 5.0), (30, 0.3)])
def test_equal_to_the_naive_rule(clients: int, beta: float, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(10, size=1003)
    rule = BalancedDirichlet(clients, beta)
    found = dealt_counts(rule, labels, 10, seed).T
    assert found.tolist() == naive(labels.tolist(), 10, rule, seed)


@pytest.mark.parametrize("beta", [1e-320, 1e-8, 0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("clients", "classes"), [(3, 10), (10, 10), (100, 10), (13, 2)])
def test_sizes_are_equal_and_nothing_is_lost(clients: int, classes: int, beta: float) -> None:
    skewed = np.random.default_rng(1).geometric(0.3, size=2000) - 1
    for labels in (np.arange(2000) % classes, np.minimum(skewed, classes - 1)):
        sizes = dealt_counts(BalancedDirichlet(clients, beta), labels, classes, 4).sum(axis=1)
        assert sizes.tolist() == [len(part) for part in np.array_split(labels, clients)]


def test_a_small_beta_skews_more() -> None:
    labels = np.arange(5000) % 10
    found = [
        measure(dealt_counts(BalancedDirichlet(20, beta), labels, 10, seed=2))["beta_cib"]
        for beta in (1e-8, 0.05, 0.5, 5.0, 500.0)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2.5 and found[-1] < 0.05
