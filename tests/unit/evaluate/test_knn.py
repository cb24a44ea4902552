"""kNN against plain loops."""

import math

import pytest
import torch
from points import Points, clusters, identity
from torch import Tensor

from coterie.evaluate.knn import Knn, vote


def by_loops(
    bank: Tensor, labels: Tensor, query: Tensor, classes: int, k: int, temperature: float
) -> list[float]:
    """The votes that every class gets."""
    likeness = [
        sum(a * b for a, b in zip(one, query.tolist(), strict=True)) for one in bank.tolist()
    ]
    nearest = sorted(range(len(bank)), key=lambda place: -likeness[place])[:k]
    votes = [0.0] * classes
    for place in nearest:
        votes[int(labels[place])] += math.exp(likeness[place] / temperature)
    return votes


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (7, 0.5), (200, 0.1)])
def test_votes_are_those_of_a_loop(k: int, temperature: float) -> None:
    draw = torch.Generator().manual_seed(k)
    bank = torch.nn.functional.normalize(torch.randn(40, 5, generator=draw), dim=1)
    queries = torch.nn.functional.normalize(torch.randn(300, 5, generator=draw), dim=1)
    labels = torch.randint(4, (40,), generator=draw)
    found = vote(bank, labels, queries, 4, k, temperature)
    for query, chosen in zip(queries, found.tolist(), strict=True):
        votes = by_loops(bank, labels, query, 4, k, temperature)
        assert votes[chosen] >= max(votes) * (1 - 1e-5)


def test_separated_clusters_are_told_apart_and_the_bank_is_counted() -> None:
    found = Knn()(identity(), clusters(900, 3, seed=1), seed=0)
    assert found == {"knn": 1.0, "knn_bank": 900.0}


def test_the_votes_are_counted_by_class() -> None:
    data, net = clusters(90, 3, seed=5, spread=1.5), identity()
    counts = Knn().confusion(net, data)
    assert counts is not None and counts.shape == (3, 3)
    x, y = data._parts[True]
    assert counts.sum(dim=1).tolist() == y.bincount(minlength=3).tolist()
    assert int(counts.trace()) / len(x) == Knn()(net, data, 0)["knn"]
    nobody = Points((x, y), (x[:0], y[:0]))
    assert Knn().confusion(identity(), nobody) is None and Knn()(identity(), nobody, 0) == {}


def test_the_fields_reach_the_vote() -> None:
    data = clusters(90, 3, seed=5, spread=1.5)
    assert len({Knn(k=k)(identity(), data, 0)["knn"] for k in (1, 20)}) == 2
    assert len({Knn(temperature=t)(identity(), data, 0)["knn"] for t in (0.01, 100.0)}) == 2


def test_a_bank_smaller_than_k_is_used_whole() -> None:
    data = clusters(6, 2, seed=2)
    assert Knn()(identity(), data, seed=0) == {"knn": 1.0, "knn_bank": 6.0}


def test_the_length_of_a_representation_does_not_count() -> None:
    data = clusters(60, 3, seed=3, spread=0.4)
    (x, y), (x_test, y_test) = data._parts[False], data._parts[True]
    factors = torch.rand(len(y), 1, generator=torch.Generator().manual_seed(0)) * 9 + 1
    longer = Points((x * factors, y), (x_test * 5, y_test))
    assert Knn()(identity(), longer, 0) == Knn()(identity(), data, 0)


def test_clients_count_once_and_one_without_a_bank_not_at_all() -> None:
    evaluator, net = Knn(where="client"), identity()
    found = {k: evaluator(net, clusters(size, 2, seed=k), 0) for k, size in enumerate((8, 40))}
    assert evaluator.summarise({0: {**found[0], "knn": 0.5}, 1: found[1]}) == {
        "client_knn_mean": 0.75,
        "client_knn_std": 0.25,
        "client_knn_worst_decile": 0.5,
        "client_knn_bank": 24.0,
    }
    none = torch.empty(0, 8), torch.empty(0, dtype=torch.int64)
    empty = clusters(8, 2, seed=0)
    empty._parts[False] = none
    assert evaluator(net, empty, 0) == {}
