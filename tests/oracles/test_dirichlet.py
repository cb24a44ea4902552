"""The Dirichlet partition, with and without MOON's balance rule, against it written out naively."""

import numpy as np
import pytest

from coterie.core import seeds
from coterie.data.partitions.dirichlet import Dirichlet
from coterie.data.partitions.iid import IID


def naive(labels: list[int], classes: int, rule: Dirichlet, seed: int) -> list[list[int]]:
    """The rule, one list and one number at a time; proportions are drawn before shuffles."""
    n, N = rule.clients, len(labels)
    attempt = 0
    while True:
        random = seeds.generator(seed, "partition", round=attempt)
        sizes, cuts = [0] * n, []
        for k in range(classes):
            members = labels.count(k)
            p = [0.0] * n
            while sum(p) == 0:
                drawn = random.dirichlet([rule.beta] * n)
                p = [drawn[j] if sizes[j] < N / n or not rule.balance else 0.0 for j in range(n)]
            total = float(np.sum(p))
            running, cut = 0.0, [0]
            for j in range(n - 1):
                running += p[j] / total
                cut.append(int(running * members))
            cuts.append([*cut, members])
            sizes = [sizes[j] + cuts[k][j + 1] - cuts[k][j] for j in range(n)]
        if min(sizes) >= rule.min_samples:
            break
        attempt += 1
    shares: list[list[int]] = [[] for _ in range(n)]
    for k in range(classes):
        shuffled = random.permutation([i for i, label in enumerate(labels) if label == k])
        for j in range(n):
            shares[j] += shuffled[cuts[k][j] : cuts[k][j + 1]].tolist()
    return [random.permutation(share).tolist() for share in shares]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize(
    ("clients", "beta", "min_samples"),
    [(1, 0.5, 10), (5, 0.1, 10), (10, 0.5, 10), (20, 1.0, 15), (40, 0.3, 2), (7, 0.05, 1)],
)
def test_equal_to_the_naive_rule(
    clients: int, beta: float, min_samples: int, balance: bool, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(10, size=1000)
    rule = Dirichlet(clients, beta, min_samples, balance)
    dealt = rule.deal(labels, 10, seed)
    assert [share.tolist() for share in dealt.values()] == naive(labels.tolist(), 10, rule, seed)
    assert list(dealt) == list(range(clients))


@pytest.mark.parametrize("seed", range(5))
def test_a_beta_of_almost_nothing_gives_whole_classes(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(10, size=1000)
    rule = Dirichlet(7, 1e-9, 1)
    found = [share.tolist() for share in rule.deal(labels, 10, seed).values()]
    assert found == naive(labels.tolist(), 10, rule, seed)


@pytest.mark.parametrize("seed", range(10))
def test_without_the_balance_rule_every_class_is_a_plain_draw(seed: int) -> None:
    """SSFL: p ~ Dir(alpha) for every class, cut at floor(cumsum(p) n), whoever has how much."""
    labels = np.repeat(np.arange(10), 5000)
    dealt = Dirichlet(10, 0.5, 1, balance=False).deal(labels, 10, seed)
    counts = np.array([np.bincount(labels[share], minlength=10) for share in dealt.values()])
    random = seeds.generator(seed, "partition", round=0)
    for k in range(10):
        cuts = np.floor(np.cumsum(random.dirichlet([0.5] * 10)) * 5000)
        cuts[-1] = 5000
        assert counts[:, k].tolist() == np.diff(cuts, prepend=0).tolist()
    assert np.array_equal(np.sort(np.concatenate(list(dealt.values()))), np.arange(50_000))


def test_without_the_balance_rule_sizes_are_not_capped() -> None:
    """A client with its fair share goes on getting classes, and may have several times as much."""
    labels = np.repeat(np.arange(10), 5000)
    late, largest = 0, 0
    for seed in range(20):
        dealt = Dirichlet(10, 0.1, 10, balance=False).deal(labels, 10, seed)
        counts = np.array([np.bincount(labels[share], minlength=10) for share in dealt.values()])
        late += int((counts[np.cumsum(counts, axis=1) - counts >= 5000] > 1).sum())
        largest = max(largest, int(counts.sum(axis=1).max()))
    assert late > 100 and largest > 12_000


@pytest.mark.parametrize("beta", [0.1, 0.5, 5.0])
def test_invariants(beta: float) -> None:
    labels = np.repeat(np.arange(10), 5000)
    for seed in range(20):
        dealt = Dirichlet(10, beta, 10).deal(labels, 10, seed)
        assert np.array_equal(np.sort(np.concatenate(list(dealt.values()))), np.arange(50_000))
        counts = np.array([np.bincount(labels[share], minlength=10) for share in dealt.values()])
        assert counts.sum(axis=1).min() >= 10
        before = np.cumsum(counts, axis=1) - counts
        strays = counts[before >= 5000]
        assert strays.max(initial=0) <= 1
        # One class can take a client past its fair share, by less than that class has.
        assert counts.sum(axis=1).max() < 5000 + 5000


def test_the_stray_sample_is_kept() -> None:
    labels = np.repeat(np.arange(10), 5000)
    strays = 0
    for seed in range(100):
        dealt = Dirichlet(10, 0.5, 10).deal(labels, 10, seed)
        counts = np.array([np.bincount(labels[share], minlength=10) for share in dealt.values()])
        strays += int(counts[np.cumsum(counts, axis=1) - counts >= 5000].sum())
    assert 0 < strays < 200


@pytest.mark.parametrize(
    ("beta", "lowest", "highest"),
    [(0.1, 1500, 2700), (0.5, 800, 1600), (5.0, 250, 600)],
)
def test_sizes_are_as_uneven_as_measured(beta: float, lowest: float, highest: float) -> None:
    labels = np.repeat(np.arange(10), 5000)
    spreads = []
    for seed in range(10):
        sizes = [len(share) for share in Dirichlet(10, beta, 10).deal(labels, 10, seed).values()]
        spreads.append(np.std(sizes))
    assert lowest < np.mean(spreads) < highest


def test_shares_are_shuffled_and_classes_without_samples_are_passed_over() -> None:
    labels = np.repeat([0, 2], 500)
    dealt = Dirichlet(3, 100.0, 10).deal(labels, 5, seed=0)
    assert sorted(np.concatenate(list(dealt.values()))) == list(range(1000))
    assert all(np.any(np.diff(share) < 0) for share in dealt.values())


def test_iid() -> None:
    labels = np.arange(103) % 3
    dealt = IID(clients=10).deal(labels, 3, seed=4)
    order = seeds.generator(4, "partition").permutation(103)
    assert np.concatenate(list(dealt.values())).tolist() == order.tolist()
    assert [len(share) for share in dealt.values()] == [11] * 3 + [10] * 7
