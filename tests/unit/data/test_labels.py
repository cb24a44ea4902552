"""Labels as users have them become numbers, and come back as they were given."""

from typing import Any

import numpy as np
import pytest

from coterie.core.errors import DataError
from coterie.data import labels

GIVEN: dict[str, tuple[Any, list[int], tuple[int | str, ...]]] = {
    "integers": (np.array([7, 3, 7]), [1, 0, 1], (3, 7)),
    "whole floats": (np.array([1.0, np.nan, 0.0]), [1, -1, 0], (0, 1)),
    "booleans": (np.array([True, False, True]), [1, 0, 1], (0, 1)),
    "text": (np.array(["dog", "cat", "dog"]), [1, 0, 1], ("cat", "dog")),
    "numbers as text": (["10", "9", "10"], [1, 0, 1], ("9", "10")),
    "missing numbers": ([1, None, -1], [0, -1, -1], (1,)),
    "missing text": (["a", None, ""], [0, -1, -1], ("a",)),
    "bytes": (np.array([b"a", b"b", b"a"]), [0, 1, 0], ("a", "b")),
    "none at all": (None, [-1, -1, -1], ()),
    "objects": (np.array([2, np.nan, 5.0], object), [0, -1, 1], (2, 5)),
}


@pytest.mark.parametrize("case", GIVEN)
def test_labels_are_numbered_in_the_order_of_classes(case: str) -> None:
    given, numbers, names = GIVEN[case]
    cleaned = labels.clean(given, 3)
    train, test, found = labels.encode(cleaned, cleaned)
    assert train.tolist() == test.tolist() == numbers
    assert found == names
    assert [type(name) for name in found] == [type(name) for name in names]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0, 1.5, 2], r"site 'a', row 1: the label is 1\.5; .*regression"),
        ([0, "b", 2], "site 'a', row 0: the label is the number 0 among text"),
        ([0, object(), 2], "site 'a', row 1: the label is <object"),
        ([0, -3, 2], "site 'a', row 1: the label is -3; .*write -1"),
        (np.zeros((3, 1), int), r"site 'a' has shape \(3, 1\) instead of \(3,\); use \.ravel"),
        (np.eye(3, dtype=int), "argmax"),
        ([0, 1], "site 'a' has 2 entries for 3 samples"),
        (np.zeros(3, complex), "site 'a' has the dtype complex128"),
        (
            np.zeros((3, 8, 8), int),
            r"site 'a' has shape \(3, 8, 8\) .*segmentation.* not supported",
        ),
    ],
)
def test_what_is_no_class_is_refused_with_its_row(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels.clean(given, 3, "site 'a'")


def test_parts_without_labels_join_any_others() -> None:
    text, nothing = labels.clean(["x", "y"], 2), labels.clean(None, 2)
    assert labels.join({"a": text, "b": nothing}).tolist() == ["x", "y", "", ""]
    assert labels.join({"a": nothing, "b": nothing}).tolist() == [-1] * 4
    with pytest.raises(DataError, match="a has text for labels and b numbers"):
        labels.join({"a": text, "b": labels.clean([1, 2], 2)})


def test_labels_for_measuring_alone_name_the_classes() -> None:
    train, test, names = labels.encode(labels.clean(None, 2), labels.clean(["b", "a"], 2))
    assert (train.tolist(), test.tolist(), names) == ([-1, -1], [1, 0], ("a", "b"))


def test_a_class_without_training_samples_is_named() -> None:
    with pytest.raises(DataError, match=r"y_test, row 1: the label is 'c', .* are: a, b;"):
        labels.encode(labels.clean(["a", "b"], 2), labels.clean(["a", "c"], 2))
