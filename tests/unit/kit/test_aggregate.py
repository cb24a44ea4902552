"""Screening and reducing replies: nothing bad is averaged, and the rest is added up exactly."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import ConfigError, NoReplies
from coterie.core.task import Reply
from coterie.kit.aggregate import Screen, reduce
from coterie.kit.rules import Gather, Mean, Sum

MEAN = {"model": Mean()}


def weights(value: float = 1.0) -> dict[str, Tensor]:
    return {"w": torch.full((2, 3), value), "count": torch.tensor(4)}


def reply(client: int = 0, examples: Any = 5, /, **groups: Mapping[str, Tensor]) -> Reply:
    return Reply(client, Bundle(groups or {"model": weights()}), examples)  # type: ignore[arg-type]


def screen(rules: Mapping[str, str] = MEAN) -> Screen:
    return Screen(Bundle({"model": weights()}), rules)


def with_entry(value: float) -> dict[str, Tensor]:
    found = weights()
    found["w"][1, 2] = value
    return found


def test_a_good_reply_has_no_problem() -> None:
    assert screen().problem(reply()) is None
    assert screen().problem(reply(model=with_entry(9e29))) is None


@pytest.mark.parametrize("examples", [0, -1, True, False, "5", 10**18, math.nan, 5.0, None])
def test_bad_numbers_of_samples(examples: Any) -> None:
    assert screen().problem(reply(0, examples)) == f"its number of samples is {examples!r}"


def test_the_largest_number_of_samples() -> None:
    assert screen().problem(reply(0, 2**53)) is None
    assert screen().problem(reply(0, 2**53 + 1)) is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38, -1e38, 1.1e30])
def test_wild_entries(value: float) -> None:
    assert screen().problem(reply(model=with_entry(value))).startswith("model/w holds ")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_wild_entries_of_every_width(dtype: torch.dtype) -> None:
    tensors = {"w": torch.tensor([1.0, math.nan, 2.0], dtype=dtype)}
    assert Screen(Bundle({"model": tensors}), MEAN).problem(reply(model=tensors)) is not None


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"w": torch.ones(2, 3)}, "group 'model' misses 'count'"),
        (weights() | {"x": torch.ones(1)}, "group 'model' has an unknown 'x'"),
        (weights() | {"w": torch.ones(3, 2)}, "model/w is float32 [3, 2], not float32 [2, 3]"),
        (weights() | {"w": torch.ones(6)}, "model/w is float32 [6], not float32 [2, 3]"),
        (
            weights() | {"w": torch.ones(2, 3, dtype=torch.float64)},
            "model/w is float64 [2, 3], not float32 [2, 3]",
        ),
        (weights() | {"count": torch.tensor(4.0)}, "model/count is float32 [], not int64 []"),
        ({}, "group 'model' misses 'count'"),
    ],
)
def test_groups_that_look_wrong(tensors: dict[str, Tensor], problem: str) -> None:
    assert screen().problem(reply(model=tensors)) == problem


def test_missing_and_extra_groups() -> None:
    assert screen().problem(reply(head=weights())) == "it sent the group 'head', expected: model"
    extra = reply(model=weights(), head=weights())
    assert screen().problem(extra) == "it sent the group 'head', expected: model"
    assert screen().problem(Reply(0, Bundle(), 5)) == "it did not send the group 'model'"
    assert screen({}).problem(reply()) == "it sent the group 'model', expected: none"
    assert screen({}).problem(Reply(0, Bundle(), 5)) is None


def test_a_group_that_looks_like_another_of_the_broadcast() -> None:
    down = Bundle({"prototypes": {"c": torch.zeros(3, 2)}})
    check = Screen(down, {"sums": Sum(like="prototypes")})
    assert check.problem(reply(sums={"c": torch.ones(3, 2)})) is None
    assert "not float32 [3, 2]" in check.problem(reply(sums={"c": torch.ones(2, 2)}))


def test_a_group_that_is_like_none_must_look_alike_on_all_clients() -> None:
    check = screen({"stats": Gather()})
    assert check.problem(reply(stats={"c": torch.full((2,), math.nan)})) is not None
    assert check.problem(reply(stats={"c": torch.ones(3)})) is None
    assert check.problem(reply(stats={"c": torch.ones(3)})) is None
    assert check.problem(reply(stats={"c": torch.ones(2)})) is not None


def test_a_reply_with_a_problem_elsewhere_does_not_set_the_pattern() -> None:
    check = screen({"stats": Gather(), "model": Mean()})
    bad = reply(stats={"c": torch.ones(7)}, model=with_entry(math.inf))
    assert check.problem(bad) is not None
    assert check.problem(reply(stats={"c": torch.ones(3)}, model=weights())) is None


def test_arrays_must_look_like_the_first_good_ones(tmp_path: Path) -> None:
    def with_rows(number: int, rows: np.ndarray, name: str = "h") -> Reply:
        blob = Blob.write(tmp_path / str(number), [rows])
        return Reply(number, Bundle({}, {}, {name: blob}), 5)

    check = screen({})
    assert check.problem(with_rows(0, np.zeros((4, 2), np.float16))) is None
    assert check.problem(with_rows(1, np.zeros((9, 2), np.float16))) is None  # any number of rows
    for number, rows in enumerate((np.zeros((4, 3), np.float16), np.zeros((4, 2), np.float32))):
        assert "its arrays are" in str(check.problem(with_rows(2 + number, rows)))
    assert check.problem(with_rows(4, np.zeros((4, 2), np.float16), "z")) is not None
    assert check.problem(Reply(5, Bundle(), 5)) is not None


def test_a_group_like_one_that_is_not_broadcast_is_an_error_of_the_method() -> None:
    with pytest.raises(ConfigError, match=r"'sums' must look like 'prototypes' .* has: model"):
        Screen(Bundle({"model": weights()}), {"sums": Sum(like="prototypes")})


def test_mean_and_sum() -> None:
    parts = [
        reply(3, 1, model={"w": torch.tensor([1.0, 2.0])}, sums={"s": torch.tensor([1.0])}),
        reply(1, 3, model={"w": torch.tensor([5.0, 6.0])}, sums={"s": torch.tensor([0.5])}),
    ]
    found = reduce(iter(parts), {"model": Mean(), "sums": Sum(like="model")})
    assert found["model"]["w"].tolist() == [4.0, 5.0]
    assert found["sums"]["s"].tolist() == [1.5]
    assert found.examples == {3: 1, 1: 3}
    assert list(found.examples) == [3, 1]


def test_gather_keeps_every_clients_own(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "b", [np.ones(2)])
    up = Bundle({"stats": {"c": torch.ones(2)}}, {"steps": 7}, {"features": blob})
    found = reduce(
        iter([Reply(4, up, 2), reply(2, 3, stats={"c": torch.zeros(2)})]), {"stats": Gather()}
    )
    assert {client: t["c"].tolist() for client, t in found.gathered["stats"].items()} == {
        4: [1.0, 1.0],
        2: [0.0, 0.0],
    }
    assert found.groups == {}
    assert found.scalars == {4: {"steps": 7}, 2: {}}
    assert found.blobs == {4: {"features": blob}, 2: {}}


def test_integers_take_the_largest_under_mean_and_the_sum_under_sum() -> None:
    counts = [torch.tensor(2**53 + 1), torch.tensor(2**53 + 3), torch.tensor(5)]
    parts = [reply(k, 1 + k, model={"n": count}) for k, count in enumerate(counts)]
    largest = reduce(iter(parts), {"model": Mean()})["model"]["n"]
    total = reduce(iter(parts), {"model": Sum()})["model"]["n"]
    assert (largest.item(), largest.dtype) == (2**53 + 3, torch.int64)
    assert (total.item(), total.dtype) == (2**54 + 9, torch.int64)


def test_small_integers_do_not_overflow_on_the_way() -> None:
    parts = [reply(k, 1, model={"n": torch.tensor([100], dtype=torch.int32)}) for k in range(3)]
    found = reduce(iter(parts), {"model": Sum()})["model"]["n"]
    assert (found.tolist(), found.dtype) == ([300], torch.int32)


def test_sums_run_in_float64_and_are_cast_once() -> None:
    parts = [reply(k, 1, model={"w": torch.tensor([v])}) for k, v in enumerate([1e8, 1.0, -1e8])]
    found = reduce(iter(parts), {"model": Sum()})["model"]["w"]
    assert (found.tolist(), found.dtype) == ([1.0], torch.float32)
    halves = [reply(k, 1, model={"w": torch.tensor([60000.0]).half()}) for k in range(3)]
    assert reduce(iter(halves), MEAN)["model"]["w"].tolist() == [60000.0]


def test_the_order_of_replies_is_the_order_of_the_sum() -> None:
    values = [1e17, 1.0, -1e17]

    def total(order: list[float]) -> float:
        entries = [torch.tensor([v], dtype=torch.float64) for v in order]
        parts = [reply(k, 1, model={"w": entry}) for k, entry in enumerate(entries)]
        return reduce(iter(parts), {"model": Sum()})["model"]["w"].item()

    assert total(values) == 0.0
    assert total([values[0], values[2], values[1]]) == 1.0


def test_replies_are_not_changed() -> None:
    one = {"w": torch.ones(2, dtype=torch.float64), "n": torch.tensor(3)}
    other = {"w": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(8)}
    for rule in (Mean(), Sum()):
        reduce(iter([reply(0, 1, model=one), reply(1, 1, model=other)]), {"model": rule})
        assert (one["w"].tolist(), one["n"].item()) == ([1.0, 1.0], 3)
        assert (other["w"].tolist(), other["n"].item()) == ([0.0, 0.0], 8)


def test_nobody_to_reduce() -> None:
    with pytest.raises(NoReplies):
        reduce(iter([]), MEAN)


def spoiled(kind: str) -> Reply:
    return {
        "nan": reply(99, 5, model=with_entry(math.nan)),
        "huge": reply(99, 5, model=with_entry(1e38)),
        "shape": reply(99, 5, model={"w": torch.ones(3, 2), "count": torch.tensor(4)}),
        "dtype": reply(99, 5, model={"w": torch.ones(2, 3).double(), "count": torch.tensor(4)}),
        "key": reply(99, 5, model={"v": torch.ones(2, 3)}),
        "extra": reply(99, 5, model=weights(), more=weights()),
        "empty": Reply(99, Bundle(), 5),
        "samples": reply(99, 0),
    }[kind]


KINDS = ["nan", "huge", "shape", "dtype", "key", "extra", "empty", "samples"]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(-1e6, 1e6, width=32)), min_size=1),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 20)), max_size=6),
)
def test_rejecting_bad_replies_gives_the_aggregate_of_the_valid_ones(
    good: list[tuple[int, float]], bad: list[tuple[str, int]]
) -> None:
    valid = [reply(k, n, model=weights(value)) for k, (n, value) in enumerate(good)]
    mixed = list(valid)
    for kind, place in bad:
        mixed.insert(place % (len(mixed) + 1), spoiled(kind))
    check = screen()
    kept = [one for one in mixed if check.problem(one) is None]
    assert [one.client for one in kept] == [one.client for one in valid]
    found, expected = reduce(iter(kept), MEAN)["model"], reduce(iter(valid), MEAN)["model"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)
