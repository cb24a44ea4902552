"""Subsets of a training set against numbers computed by hand or published."""

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.data.subset import hold_out, select, shape_tail, share_equally

CIFAR = np.arange(50000) % 10


def test_the_defaults_keep_everything() -> None:
    assert np.array_equal(select(CIFAR, 10, seed=1), np.arange(50000))


def test_the_published_long_tail_of_cifar10() -> None:
    """Cao et al. 2019, imbalance 100 and 10: counts of their own code."""
    counts = np.full(10, 5000)
    assert shape_tail(counts, 100).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    expected = [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
    assert shape_tail(counts, 10).tolist() == expected


def test_a_long_tail_keeps_what_there_is() -> None:
    assert shape_tail(np.array([4, 100, 100]), 100).tolist() == [4, 10, 1]
    assert shape_tail(np.array([3, 3, 0]), 1000).tolist() == [3, 1, 0]
    assert shape_tail(np.array([9]), 50).tolist() == [9]


def test_the_drawn_samples_have_the_counts() -> None:
    rows = select(CIFAR, 10, seed=3, imbalance=100)
    assert np.bincount(CIFAR[rows]).tolist() == shape_tail(np.full(10, 5000), 100).tolist()
    assert np.array_equal(rows, np.unique(rows))
    assert np.array_equal(rows, select(CIFAR, 10, seed=3, imbalance=100))
    assert not np.array_equal(rows, select(CIFAR, 10, seed=4, imbalance=100))


@pytest.mark.parametrize(
    ("counts", "limit", "sizes"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([10, 10, 10], 11, [4, 4, 3]),
        ([10, 2, 10], 12, [5, 2, 5]),
        ([10, 2, 10], 13, [6, 2, 5]),
        ([1, 3, 100], 50, [1, 3, 46]),
        ([5, 0, 5], 4, [2, 0, 2]),
        ([5, 4, 3], 12, [5, 4, 3]),
        ([5, 4, 3], 3, [1, 1, 1]),
    ],
)
def test_a_limit_is_shared_equally(counts: list[int], limit: int, sizes: list[int]) -> None:
    assert share_equally(np.array(counts), limit).tolist() == sizes
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), counts))
    rows = select(labels, 3, seed=0, limit=limit)
    assert np.bincount(labels[rows], minlength=3).tolist() == sizes
    assert (np.diff(rows) > 0).all()


def test_a_limit_after_a_long_tail() -> None:
    rows = select(CIFAR, 10, seed=0, limit=2000, imbalance=100)
    assert np.bincount(CIFAR[rows]).tolist() == [250] * 2 + [249] * 4 + [232, 139, 83, 50]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 50001}, r"data\.limit=50001 is more than the 50000"),
        ({"limit": 9}, r"data\.limit=9 leaves some of the 10 classes"),
        ({"limit": -1}, r"data\.limit=-1"),
        ({"limit": 20000, "imbalance": 100.0}, r"data\.limit=20000 is more than the 12406"),
        ({"imbalance": 0.5}, r"data\.imbalance=0\.5"),
        ({"imbalance": float("nan")}, r"data\.imbalance=nan"),
        ({"imbalance": float("inf")}, r"data\.imbalance=inf"),
    ],
)
def test_what_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select(CIFAR, 10, 0, **settings)  # type: ignore[arg-type]


def test_a_fifth_of_every_class_is_held_out() -> None:
    labels = np.repeat([0, 1, 2, 3, 4], [100, 13, 2, 1, 3])
    train, test = hold_out(labels)
    assert np.bincount(labels[test], minlength=5).tolist() == [20, 3, 1, 0, 1]
    assert sorted([*train, *test]) == list(range(len(labels)))
    again = hold_out(labels)
    assert all(np.array_equal(a, b) for a, b in zip((train, test), again, strict=True))
