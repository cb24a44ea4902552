"""Partitions: what they say about themselves, how they travel, and what is refused."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.data import partition
from coterie.data.partition import Partition, deal_test, divide
from coterie.data.partitions.dirichlet import Dirichlet
from coterie.data.partitions.iid import IID
from coterie.data.skew import Skewed

LABELS = np.arange(60) % 3


def small() -> Partition:
    return Partition(
        {3: np.array([5, 1, 4]), 7: np.array([0]), 9: np.array([2, 3])},
        {3: np.array([1]), 9: np.array([2, 0])},
        ("ann", "bob", "cid"),
    )


@dataclass(frozen=True)
class Fixed(Skewed):
    """A rule that deals what it is given."""

    shares: dict[int, list[int]] = field(default_factory=dict)
    min_samples: int = 1

    def deal(
        self, labels: np.ndarray, classes: int, seed: int, groups: object = None
    ) -> dict[int, np.ndarray]:
        return {client: np.array(share, np.int64) for client, share in self.shares.items()}


def test_what_a_partition_says() -> None:
    made = small()
    assert made.clients == (3, 7, 9)
    assert made.sizes() == {3: 3, 7: 1, 9: 2}
    assert made.train[3].tolist() == [5, 1, 4]
    assert made.test[7].size == 0
    assert made.class_table(np.array([0, 1, 2, 0, 1, 1]), 3).tolist() == [
        [0, 3, 0],
        [1, 0, 0],
        [1, 0, 1],
    ]
    assert Partition(made.train, made.test).names == ("3", "7", "9")


def test_names_and_tests_must_belong_to_clients() -> None:
    with pytest.raises(ValueError, match="3 clients, 1 names"):
        Partition(small().train, {}, ("one",))
    with pytest.raises(ValueError, match="1 tests"):
        Partition(small().train, {5: np.array([1])})


def test_pack_and_unpack() -> None:
    made = small()
    packed = made.pack()
    assert set(packed) == {"clients", "train", "train_offsets", "test", "test_offsets"}
    assert all(array.dtype == np.int64 and array.ndim == 1 for array in packed.values())
    back = Partition.unpack(packed, made.names)
    assert back.digest() == made.digest()
    assert np.shares_memory(back.train[9], packed["train"])
    for client in made.clients:
        assert np.array_equal(back.train[client], made.train[client])
        assert np.array_equal(back.test[client], made.test[client])
    assert Partition.unpack(Partition({}, {}).pack()).clients == ()


def test_the_digest_follows_every_part() -> None:
    made = small()
    train, test = dict(made.train), dict(made.test)
    variants = [
        made,
        replace(made, names=("ann", "bob", "cyd")),
        replace(made, train={**train, 3: np.array([5, 4, 1])}),
        replace(made, train={**train, 3: np.array([5, 1]), 7: np.array([4, 0])}),
        replace(made, test={**test, 7: np.array([3])}),
        Partition({4: train[3], 7: train[7], 9: train[9]}, {4: test[3], 9: test[9]}, made.names),
    ]
    assert len({variant.digest() for variant in variants}) == len(variants)
    assert small().digest() == made.digest()


def test_pooled() -> None:
    pooled = small().pooled()
    assert pooled.clients == (0,)
    assert pooled.train[0].tolist() == [5, 1, 4, 0, 2, 3]
    assert pooled.test[0].tolist() == [1, 2, 0]


def test_the_test_set_is_dealt_by_class_shares() -> None:
    y_train = np.repeat([0, 1, 2], [40, 40, 20])
    train = {0: np.arange(0, 40), 1: np.arange(40, 50), 2: np.arange(50, 80)}
    y_test = np.arange(60) % 3
    dealt = deal_test(train, y_train, y_test, 3)
    counts = {
        client: np.bincount(y_test[share], minlength=3).tolist() for client, share in dealt.items()
    }
    assert counts == {0: [20, 0, 0], 1: [0, 5, 0], 2: [0, 15, 0]}
    assert sorted(np.concatenate(list(dealt.values()))) == np.flatnonzero(y_test < 2).tolist()


def test_every_test_image_of_a_held_class_is_dealt_once() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        classes, clients = random.integers(2, 8), int(random.integers(1, 30))
        y_train, y_test = random.integers(classes, size=200), random.integers(classes, size=70)
        order = random.permutation(200)[: random.integers(clients, 200)]
        train = dict(enumerate(np.array_split(order, clients)))
        dealt = deal_test(train, y_train, y_test, int(classes))
        held = np.isin(y_test, y_train[order])
        assert sorted(np.concatenate(list(dealt.values()))) == np.flatnonzero(held).tolist()
        assert list(dealt) == list(train)
        for client, share in dealt.items():
            for k in range(classes):
                total = int(np.count_nonzero(y_train[order] == k))
                mine = int(np.count_nonzero(y_train[train[client]] == k))
                exact = mine / max(total, 1) * np.count_nonzero(y_test == k)
                assert abs(np.count_nonzero(y_test[share] == k) - exact) <= 1


def test_kinds_and_classes() -> None:
    assert {"dirichlet", "iid"} <= set(registry.names("data/partitions"))
    assert partition.load_class("dirichlet") is Dirichlet
    assert partition.load_class("iid") is IID
    with pytest.raises(
        ConfigError, match=r"partition\.kind = 'dirichlett' .*did you mean 'dirichlet'"
    ):
        partition.load_class("dirichlett")
    with pytest.raises(ConfigError, match=r"partition\.kind = 'zzz' is not known; it is one of: "):
        partition.load_class("zzz")


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (IID, {"clients": 0}),
        (IID, {"min_samples": 0}),
        (Dirichlet, {"beta": 0}),
        (Dirichlet, {"beta": float("inf")}),
        (Dirichlet, {"beta": float("nan")}),
        (Dirichlet, {"clients": -1}),
    ],
)
def test_ranges_are_validated(rule: type, bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(rule).validate_python(bad)
    assert TypeAdapter(rule).validate_python({"clients": 4}) == rule(clients=4)


@pytest.mark.parametrize(
    ("shares", "min_samples", "message"),
    [
        ({}, 1, "made no client"),
        ({0: [1, 2], 1: [3]}, 2, r"partition\.min_samples=2, but client 1 of Fixed has 1"),
        ({0: [1, 2], 1: [2]}, 1, "dealt the sample 2 2 times"),
        ({0: [1, 1]}, 1, "dealt the sample 1 2 times"),
        ({0: [1, 60]}, 1, "dealt the sample 60, and there are 60"),
        ({0: [-1]}, 1, "dealt the sample -1"),
    ],
)
def test_a_rule_that_deals_wrongly(
    shares: dict[int, list[int]], min_samples: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        divide(Fixed(shares, min_samples), LABELS, LABELS, 3, seed=0)


@pytest.mark.parametrize("rule", [IID, Dirichlet])
def test_more_than_there_is(rule: type) -> None:
    with pytest.raises(ConfigError, match=r"partition\.clients=61 is more than the 60 training"):
        divide(rule(clients=61, min_samples=1), LABELS, LABELS, 3, seed=0)
    with pytest.raises(
        ConfigError, match=r"needs 80 training samples .*partition\.min_samples=15 "
    ):
        divide(rule(clients=4, min_samples=20), LABELS, LABELS, 3, seed=0)


@pytest.mark.parametrize("beta", [1e-320, 1e-8, 0.01, 0.1])
def test_a_beta_too_small_names_one_that_works(beta: float) -> None:
    labels = np.arange(1437) % 10
    rule = Dirichlet(clients=50, beta=beta, min_samples=10)
    with pytest.raises(ConfigError, match=rf"^partition\.beta={beta} leaves .*200 draws") as caught:
        divide(rule, labels, labels, 10, seed=1)
    words = str(caught.value).rsplit("partition.beta=", 1)[1].split()
    divide(replace(rule, beta=float(words[0])), labels, labels, 10, seed=1)


def test_a_min_samples_that_works_is_named() -> None:
    labels = np.arange(1000) % 10
    rule = Dirichlet(clients=100, beta=0.5, min_samples=10)
    with pytest.raises(ConfigError, match="no larger beta was found to help") as caught:
        divide(rule, labels, labels, 10, seed=1)
    best = int(str(caught.value).rsplit("partition.min_samples=", 1)[1].split(",")[0])
    divide(replace(rule, min_samples=best), labels, labels, 10, seed=1)


def test_make_is_a_function_of_the_seed() -> None:
    digests = [divide(Dirichlet(4), LABELS, LABELS, 3, seed).digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_of_a_partition_without_shifts_is_what_it_always_was() -> None:
    told = "c2fea2b963359642785ad73f2e68119473e39380a12552e6dcdcef1d0a2d7be1"
    assert small().digest() == told


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a/b", "a\nb", "a\0b", "n" * 300, ""])
def test_a_name_that_no_file_should_have_is_replaced_by_a_number(name: str) -> None:
    shares = {0: np.arange(2), 1: np.arange(2, 4)}
    partition = Partition(shares, {}, (name, "north"))
    assert partition.file_name(0) == "client-0.safetensors"
    assert partition.file_name(1) == "north.safetensors"
