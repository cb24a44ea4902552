"""Screening and reducing replies: nothing bad is averaged, and the rest is added up exactly."""

import math
from collections.abc import Mapping
from dataclasses import replace
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
from coterie.kit.expect import expect
from coterie.kit.rules import Array, Arrays, Entry, Gather, Mean, Rules, Sum

MEAN = {"model": Mean()}


def weights(value: float = 1.0) -> dict[str, Tensor]:
    return {"w": torch.full((2, 3), value), "count": torch.tensor(4)}


def reply(client: int = 0, examples: Any = 5, /, **groups: Mapping[str, Tensor]) -> Reply:
    return Reply(client, Bundle(groups or {"model": weights()}), examples)  # type: ignore[arg-type]


def compare(
    down: Bundle, rules: Rules, arrays: Arrays | None = None, folder: Path | None = None
) -> Screen:
    sizes = {"classes": (3,), "width": (2,), "code": (2, 2)}
    return Screen(expect(down, rules, arrays or {}, sizes), folder=folder)


def screen(rules: Rules = MEAN) -> Screen:
    return compare(Bundle({"model": weights()}), rules)


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
    assert compare(Bundle({"model": tensors}), MEAN).problem(reply(model=tensors)) is not None


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
    check = compare(down, {"sums": Sum(like="prototypes")})
    assert check.problem(reply(sums={"c": torch.ones(3, 2)})) is None
    assert "not float32 [3, 2]" in check.problem(reply(sums={"c": torch.ones(2, 2)}))


STATS = {"stats": Gather(entries={"c": Entry("float32", ("classes", "width"))})}


def test_a_group_that_is_not_in_the_broadcast_must_look_as_declared() -> None:
    check = screen(STATS)
    assert check.problem(reply(stats={"c": torch.ones(3, 2)})) is None
    assert "not float32 [3, 2]" in check.problem(reply(stats={"c": torch.ones(3)}))
    assert "unknown 'd'" in check.problem(reply(stats={"c": torch.ones(3, 2), "d": torch.ones(1)}))


@pytest.mark.parametrize("wrong", [torch.ones(7), torch.ones(3, 2).double(), torch.ones(0)])
def test_one_wrong_first_client_does_not_get_the_others_rejected(wrong: Tensor) -> None:
    check = screen(STATS)
    assert check.problem(reply(0, stats={"c": wrong})) is not None
    assert check.problem(reply(1, stats={"c": torch.ones(3, 2)})) is None


def test_a_group_of_which_no_form_is_known_is_an_error_of_the_method() -> None:
    with pytest.raises(ConfigError, match=r"'stats' have no form: .* has model; .*entries="):
        screen({"stats": Gather()})
    with pytest.raises(ConfigError, match=r"unknown side 'depth'; known: classes, width, code"):
        screen({"stats": Gather(entries={"c": Entry("float32", ("depth",))})})


def test_declared_bounds() -> None:
    check = screen({"n": Sum(entries={"n": Entry("int64", ("classes",), least=0, below=9)})})
    assert check.problem(reply(n={"n": torch.tensor([0, 8, 3])})) is None
    assert "below 0" in check.problem(reply(n={"n": torch.tensor([0, -1, 3])}))
    assert "not below 9" in check.problem(reply(n={"n": torch.tensor([0, 9, 3])}))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_entries_that_cannot_be_added_up_are_rejected(dtype: torch.dtype) -> None:
    tensors = weights() | {"w": torch.ones(2, 3).to(dtype)}
    assert "not float32 [2, 3]" in screen().problem(reply(model=tensors))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scalars_that_are_not_finite(value: float) -> None:
    sent = Reply(0, Bundle({"model": weights()}, {"x": value}), 5)
    assert screen().problem(sent) == f"the scalar 'x' is {value}"


ARRAYS = {"h": Array("float16", ("code",), each=2), "y": Array("int64", (), 2, 0, "classes")}
H, Y = np.ones((4, 2, 2), np.float16), np.arange(4) % 3


def with_arrays(folder: Path, h: np.ndarray = H, y: np.ndarray = Y, /, examples: int = 5) -> Reply:
    blobs = {name: Blob.write(folder / name, [rows]) for name, rows in (("h", h), ("y", y))}
    return Reply(0, Bundle(blobs=blobs), examples)


def test_arrays_must_look_as_declared(tmp_path: Path) -> None:
    check = compare(Bundle(), {}, ARRAYS, tmp_path)
    assert check.problem(with_arrays(tmp_path)) is None
    assert check.problem(with_arrays(tmp_path, H[:0], Y[:0])) is None
    wrong = {
        "not rows of float16": with_arrays(tmp_path / "a", H.astype(np.float32)),
        "not rows of float16 ": with_arrays(tmp_path / "b", H[:, :1]),
        "4 rows, at most 2": with_arrays(tmp_path / "c", examples=1),
        "different numbers of rows": with_arrays(tmp_path / "d", H, Y[:3]),
        "holds 3, which is not below 3": with_arrays(tmp_path / "e", H, Y + 1),
        "holds -1, which is below 0": with_arrays(tmp_path / "f", H, Y - 1),
        "holds nan": with_arrays(tmp_path / "g", H * np.float16(math.nan)),
        "did not send the array": Reply(0, Bundle(), 5),
    }
    for problem, sent in wrong.items():
        assert problem.strip() in str(check.problem(sent))


def test_an_array_is_a_whole_file_of_the_folder_for_uploads(tmp_path: Path) -> None:
    folder, outside = tmp_path / "in", tmp_path / "out"
    check = compare(Bundle(), {}, ARRAYS, folder)
    assert check.problem(with_arrays(folder / "0")) is None
    no_file = "no file of the folder for uploads"
    assert no_file in str(check.problem(with_arrays(outside)))
    good = with_arrays(folder / "0")
    (folder / "link").symlink_to(outside / "h")
    (folder / "away").symlink_to(outside)
    (folder / "folder").mkdir()
    for path in ("link", "away/h", "../out/h", "folder"):
        blobs = {**good.up.blobs, "h": replace(good.up.blobs["h"], path=folder / path)}
        assert no_file in str(check.problem(replace(good, up=Bundle(blobs=blobs))))
    for path in ("absent", "zero\0byte"):
        blobs = {**good.up.blobs, "h": replace(good.up.blobs["h"], path=folder / path)}
        assert "is not there" in str(check.problem(replace(good, up=Bundle(blobs=blobs))))


def test_a_file_that_is_shorter_than_its_shape_is_rejected_unopened(tmp_path: Path) -> None:
    check = compare(Bundle(), {}, ARRAYS, tmp_path)
    sent = with_arrays(tmp_path)
    sent.up.blobs["h"].path.write_bytes(b"short")
    assert "has 5 bytes, and its shape needs 32" in str(check.problem(sent))
    huge = {**sent.up.blobs, "h": replace(sent.up.blobs["h"], shape=(4, 2**40, 2**40))}
    assert "not rows of" in str(check.problem(Reply(0, Bundle(blobs=huge), 5)))


def test_a_group_like_one_that_is_not_broadcast_is_an_error_of_the_method() -> None:
    with pytest.raises(ConfigError, match=r"'sums' must look like 'prototypes' .* has: model"):
        compare(Bundle({"model": weights()}), {"sums": Sum(like="prototypes")})


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
        "inf": reply(99, 5, model=with_entry(math.inf)),
        "complex": reply(99, 5, model={"w": torch.ones(2, 3) * 1j, "count": torch.tensor(4)}),
        **{f"samples {n!r}": reply(99, n) for n in SAMPLES},
    }[kind]


SAMPLES: list[Any] = [0, -1, math.nan, 1e18, 10**18, True, "5"]
KINDS = ["nan", "inf", "huge", "shape", "dtype", "complex", "key", "extra", "empty"]
KINDS += [f"samples {n!r}" for n in SAMPLES]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
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
