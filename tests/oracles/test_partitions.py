"""Shards, quantities and groups against their rules; the four combinations of MFCL's Figure 4."""

import sys
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from coterie.core import registry, seeds
from coterie.core.errors import ConfigError
from coterie.data.datasets import Groups
from coterie.data.heterogeneity import measure
from coterie.data.partition import divide, load_class
from coterie.data.partitions.by_group import ByGroup
from coterie.data.partitions.iid import IID
from coterie.data.partitions.quantity import Quantity
from coterie.data.partitions.shards import Shards
from coterie.data.partitions.windows import Windows
from coterie.data.skew import Skewed

LABELS = np.random.default_rng(0).permutation(np.arange(5000) % 10)
TEST = np.arange(1000) % 10


@pytest.mark.parametrize(("clients", "shards", "samples"), [(10, 2, 5000), (7, 3, 1003), (5, 1, 7)])
def test_shards(clients: int, shards: int, samples: int) -> None:
    labels = LABELS[:samples]
    dealt = Shards(clients, shards).deal(labels, 10, seed=3)
    ordered = sorted(range(samples), key=lambda i: labels[i])
    bounds = np.cumsum([0, *(len(part) for part in np.array_split(labels, clients * shards))])
    order = seeds.generator(3, "partition").permutation(clients * shards).tolist()
    for client in range(clients):
        expected: list[int] = []
        for _ in range(shards):
            shard = order.pop(0)
            expected += ordered[bounds[shard] : bounds[shard + 1]]
        assert dealt[client].tolist() == expected


def test_most_clients_of_shards_have_two_classes() -> None:
    table = divide(Shards(100), LABELS, TEST, 10, seed=0).class_table(LABELS, 10)
    assert (table.sum(axis=1) == 50).all() and ((table > 0).sum(axis=1) <= 2).all()
    with pytest.raises(ConfigError, match=r"makes 20 shards of 15 .*shards_per_client=1 or fewer"):
        divide(Shards(10), LABELS[:15], TEST, 10, seed=0)


@pytest.mark.parametrize(("beta", "seed"), [(0.5, 1), (5.0, 2), (0.3, 3)])
def test_quantity(beta: float, seed: int) -> None:
    rule = Quantity(8, beta)
    dealt = rule.deal(LABELS, 10, seed)
    for attempt in range(200):
        random = seeds.generator(seed, "partition", round=attempt)
        running, cuts = 0.0, [0]
        for p in random.dirichlet([beta] * 8)[:-1]:
            running += p
            cuts.append(int(running * 5000))
        cuts.append(5000)
        if min(np.diff(cuts)) >= 10:
            break
    order = random.permutation(5000).tolist()
    assert [share.tolist() for share in dealt.values()] == [order[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize("beta", [1e-320, 1e-8, 0.01, 0.1])
def test_a_beta_too_small_names_one_that_works(beta: float) -> None:
    rule = Quantity(100, beta)
    with pytest.raises(ConfigError, match=rf"^partition\.beta={beta} leaves .*200 draws") as caught:
        divide(rule, LABELS, TEST, 10, seed=1)
    words = str(caught.value).rsplit("partition.beta=", 1)[1].split()
    divide(replace(rule, beta=float(words[0])), LABELS, TEST, 10, seed=1)


def groups(test: bool) -> Groups:
    return Groups(
        train=np.array([2, 0, 2, 1, 0, 2, 0, 4]),
        test=np.array([0, 3, 2, 2]) if test else np.empty(0, np.int64),
        names=("ann", "bob", "cid", "dan", "eve"),
    )


def test_groups_are_the_clients() -> None:
    labels, test = np.array([0, 1, 0, 1, 0, 1, 0, 1]), np.array([0, 1, 0, 1])
    made = divide(ByGroup(), labels, test, 2, seed=0, groups=groups(test=True))
    assert made.names == ("ann", "cid") and made.clients == (0, 1)
    assert [share.tolist() for share in made.train.values()] == [[1, 4, 6], [0, 2, 5]]
    assert [share.tolist() for share in made.test.values()] == [[0], [2, 3]]
    shared = divide(ByGroup(min_samples=1), labels, test, 2, seed=0, groups=groups(test=False))
    assert shared.names == ("ann", "bob", "cid", "eve")
    assert sorted(np.concatenate(list(shared.test.values()))) == [0, 1, 2, 3]


def test_groups_that_are_missing_or_too_small() -> None:
    with pytest.raises(ConfigError, match=r"partition\.kind=by-group needs .* this one has none"):
        divide(ByGroup(), LABELS, TEST, 10, seed=0)
    with pytest.raises(ConfigError, match=r"min_samples=9 leaves out all 5 groups.*=3 or fewer"):
        divide(ByGroup(min_samples=9), LABELS[:8], TEST, 10, seed=0, groups=groups(test=False))


@pytest.mark.parametrize("kind", sorted(set(registry.names("data/partitions")) - {"by-group"}))
def test_every_kind(kind: str) -> None:
    scheme = load_class(kind)()
    made, again = (divide(scheme, LABELS, TEST, 10, seed=5) for _ in range(2))
    assert made.digest() == again.digest() != divide(scheme, LABELS, TEST, 10, seed=6).digest()
    assert sum(made.sizes().values()) == 5000 and min(made.sizes().values()) >= scheme.min_samples
    assert sum(map(len, made.test.values())) == 1000
    assert not made.shifts and made.clients == tuple(range(10))


def count_calls(scheme: Skewed, labels: np.ndarray) -> int:
    """How many functions are called, here and in C, while a scheme divides samples."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        shares = scheme.deal(labels, 100, seed=0)
    finally:
        sys.setprofile(None)
    assert sorted(np.concatenate(list(shares.values()))) == list(range(len(labels)))
    return calls


@pytest.mark.parametrize(
    "kind", sorted(set(registry.names("data/partitions")) - {"by-group", "windows"})
)
def test_the_work_grows_with_the_clients_and_not_with_their_square(kind: str) -> None:
    labels = np.arange(50_000) % 100
    beta = {"beta": 5.0} if kind == "quantity" else {}
    few, many = (
        load_class(kind)(clients=clients, min_samples=1, **beta)  # type: ignore[call-arg]
        for clients in (100, 1000)
    )
    assert count_calls(many, labels) < 15 * count_calls(few, labels)


@dataclass(frozen=True)
class Case:
    """One panel of Figure 4: how the data set is and how it is divided."""

    name: str
    labels: np.ndarray
    scheme: Skewed
    balanced: bool
    alike: bool


THINNED = np.repeat(np.arange(10), np.geomspace(1500, 15, 10).astype(int))  # data.imbalance
FIGURE_4 = [
    Case("(a) homogeneous, balanced", LABELS, IID(), balanced=True, alike=True),
    Case("(b) homogeneous, imbalanced", THINNED, IID(), balanced=False, alike=True),
    Case(
        "(c) heterogeneous, balanced: sizes",
        LABELS,
        Quantity(beta=3.0, min_samples=150),
        True,
        False,
    ),
    Case(
        "(c) heterogeneous, balanced: features",
        LABELS,
        IID(skew="rotation", strength=45.0),
        balanced=True,
        alike=False,
    ),
    Case("(d) heterogeneous, imbalanced", LABELS, Windows(2), balanced=False, alike=False),
]


@pytest.mark.parametrize("case", FIGURE_4, ids=lambda case: case.name)
def test_the_four_combinations_of_figure_4(case: Case) -> None:
    made = divide(case.scheme, case.labels, TEST, 10, seed=1)
    found = measure(made.class_table(case.labels, 10))
    assert (found["beta_cib"] < 0.1) == case.balanced
    assert (found["effective_classes"] > 9) == case.balanced
    # clients with all classes alike can differ in their sizes or their features only
    differ = found["jensen_shannon"] > 0.1 or found["size_gini"] > 0.1 or bool(made.shifts)
    assert differ != case.alike
