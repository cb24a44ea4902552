"""MFCL's class windows: every printed row of its Tables 1 and 4, and the rules by naive loops."""

import math
from typing import Literal

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.data.partition import divide
from coterie.data.partitions.windows import Windows

# scenario: first and last class (from 1) of the clients 1, 2, M - 1, M
PRINTED = {
    1: [(1, 1), (2, 2), (9, 9), (10, 10)],
    2: [(1, 2), (3, 4), (8, 9), (10, 1)],
    3: [(1, 3), (4, 6), (5, 7), (8, 10)],
    4: [(1, 4), (5, 8), (4, 7), (8, 1)],
    5: [(1, 5), (6, 10), (1, 5), (6, 10)],
    6: [(1, 6), (7, 2), (9, 4), (5, 10)],
    7: [(1, 7), (8, 4), (7, 3), (4, 10)],
    8: [(1, 8), (9, 6), (5, 2), (3, 10)],
    9: [(1, 9), (10, 8), (3, 1), (2, 10)],
    10: [(1, 10)] * 4,
    11: [(1, 1), (2, 2), (99, 99), (100, 100)],  # printed {9}
    12: [(1, 2), (3, 4), (98, 99), (100, 1)],  # printed {8:9}
    13: [(1, 3), (4, 6), (95, 97), (98, 100)],  # printed {5:7} and {8:100}
    20: [(1, 10), (11, 20), (81, 90), (91, 100)],
    30: [(1, 20), (21, 40), (61, 80), (81, 100)],
    70: [(1, 60), (61, 20), (81, 40), (41, 100)],
    109: [(1, 99), (100, 98), (3, 1), (2, 100)],
    110: [(1, 100)] * 4,
}
OFF_THE_PLAIN_RULE = {2, 4, 12}


def ends(rule: Windows, client: int) -> tuple[int, int]:
    window = rule.windows()[client]
    whole = len(window) == len(rule.windows())  # {1:n} is how the tables write all of them
    return (1, len(window)) if whole else (window[0] + 1, window[-1] + 1)


@pytest.mark.parametrize("scenario", PRINTED)
def test_the_printed_rows(scenario: int) -> None:
    table, plain = Windows(scenario), Windows(scenario, "plain")
    clients = (0, 1, -2, -1)
    assert [ends(table, client) for client in clients] == PRINTED[scenario]
    follows = [ends(plain, client) for client in clients] == PRINTED[scenario]
    assert follows == (scenario not in OFF_THE_PLAIN_RULE)


@pytest.mark.parametrize("rule", ["table", "plain"])
def test_every_class_is_held_by_as_many_clients(rule: Literal["table", "plain"]) -> None:
    for scenario in range(1, 111):
        n, w = (10, scenario) if scenario <= 10 else (100, scenario - 10)
        found = Windows(scenario, rule).windows()
        for m, window in enumerate(found):
            shift = 0
            if rule == "table" and math.gcd(w, n) == 2 and w < n / 2:
                shift = m // (n // math.gcd(w, n))
            assert window == [(m * w + shift + j) % n for j in range(w)]
        assert np.bincount(np.concatenate(found)).tolist() == [w] * n


@pytest.mark.parametrize(
    ("scenario", "size"),
    [(1, 5000), (3, 4998), (6, 4998), (7, 4998), (9, 4995), (13, 498), (70, 480), (109, 495)],
)
def test_sizes(scenario: int, size: int) -> None:
    n = 10 if scenario <= 10 else 100
    labels = np.repeat(np.arange(n), 50_000 // n)
    w = len(Windows(scenario).windows()[0])
    table = divide(Windows(scenario), labels, labels[::100], n, seed=1).class_table(labels, n)
    assert set(table.sum(axis=1).tolist()) == {size}
    assert set(table[table > 0].tolist()) == {size // w}
    everyone = divide(Windows(scenario, equal=False), labels, labels[::100], n, seed=1)
    table = everyone.class_table(labels, n)
    assert table.sum() == 50_000 and np.ptp(table[table > 0]) <= 1


def test_chunks_follow_the_clients_and_the_seed() -> None:
    labels = np.arange(1000) % 10
    one, same, other = (Windows(3).deal(labels, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one[client], same[client]) for client in one)
    assert not np.array_equal(one[0], other[0])
    assert labels[one[9]].tolist() == [7] * 33 + [8] * 33 + [9] * 33


def test_refusals() -> None:
    labels = np.arange(100) % 10
    with pytest.raises(ConfigError, match=r"scenario=11 is for 100 .* has 10; use .*=1 to 10"):
        divide(Windows(11), labels, labels, 10, seed=0)
    with pytest.raises(ConfigError, match=r"scenario=2 is for 10 .* has 100; use .*=11 to 110"):
        divide(Windows(2), np.arange(100), labels, 100, seed=0)
    with pytest.raises(ConfigError, match=r"has 3; use another partition\.kind"):
        divide(Windows(2), labels % 3, labels % 3, 3, seed=0)
    few = np.append(np.delete(labels, labels == 4), [4, 4])
    with pytest.raises(ConfigError, match=r"class 4 to 5 clients and it has 2 .*equal=false"):
        divide(Windows(5), few, labels, 10, seed=0)
    assert len(divide(Windows(5, equal=False), few, labels, 10, seed=0).clients) == 10
    with pytest.raises(ConfigError, match=r"client 0 of Windows has 10 samples; lower it$"):
        divide(Windows(1, min_samples=11), labels, labels, 10, seed=0)
