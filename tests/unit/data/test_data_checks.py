"""The checks of a data set's arrays: every bad one is one clear line, harmless ones are cast."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import DataError
from coterie.data.datasets import Raw, store

Arrays = dict[str, Any]


def images(**changes: Any) -> Arrays:
    """Twelve training and six test images of three classes, with some arrays replaced."""
    good = {
        "x_train": np.arange(12 * 64, dtype=np.uint8).reshape(12, 1, 8, 8),
        "y_train": np.arange(12) % 3,
        "x_test": np.arange(6 * 64, dtype=np.uint8).reshape(6, 1, 8, 8),
        "y_test": np.arange(6) % 3,
    }
    return {**good, **changes}


def with_value(name: str, row: int, value: Any, dtype: Any = None) -> Arrays:
    array = images()[name].astype(dtype) if dtype else images()[name]
    array[row] = value
    return images(**{name: array})


def floats(value: float) -> Arrays:
    x = images()["x_train"].astype(np.float64)
    x[7, 0, 3, 2] = value
    return images(x_train=x, x_test=images()["x_test"].astype(np.float64))


REFUSED: dict[str, tuple[Arrays, str]] = {
    "lengths differ": (images(y_train=np.arange(11) % 3), "y_train has 11 entries for 12 samples"),
    "test lengths differ": (images(y_test=np.arange(7) % 3), "y_test has 7 entries for 6 samples"),
    "empty train": (
        images(x_train=np.zeros((0, 1, 8, 8), np.uint8), y_train=np.zeros(0, int)),
        "x_train is empty",
    ),
    "empty test": (
        images(x_test=np.zeros((0, 1, 8, 8), np.uint8), y_test=np.zeros(0, int)),
        "x_test is empty",
    ),
    "images of no pixels": (images(x_train=np.zeros((12, 1, 0, 8), np.uint8)), "x_train is empty"),
    "amounts": (images(y_train=np.arange(12) / 2), r"y_train, row 1: the label is 0\.5; .*regress"),
    "text beside numbers": (
        images(y_test=np.array(list("abcabc"))),
        "y_test, row 0: the label is 'a', and the classes of the training data are: 0, 1, 2;",
    ),
    "times": (images(y_test=np.zeros(6, "M8[s]")), "y_test has the dtype datetime64"),
    "column labels": (images(y_train=(np.arange(12) % 3)[:, None]), r"y_train has shape \(12, 1\)"),
    "one-hot labels": (images(y_train=np.eye(3, dtype=int)[np.arange(12) % 3]), "argmax"),
    "negative label": (
        with_value("y_train", 4, -2),
        r"y_train, row 4: .* is -2; .*write -1",
    ),
    "unseen test label": (with_value("y_test", 5, 3), "y_test, row 5: the label is 3, and the cl"),
    "unsigned giant": (
        with_value("y_train", 9, 2**64 - 1, np.uint64),
        "y_train, row 9: the label is 18446744073709551615",
    ),
    "objects": (images(x_train=np.full((12, 1, 8, 8), None)), "x_train is of dtype object"),
    "text": (images(x_train=np.full((12, 4), "a")), "x_train, row 0: it holds the text 'a'"),
    "complex": (images(x_test=np.ones((6, 1, 8, 8), complex)), "x_test is of dtype complex128"),
    "bool images": (images(x_test=np.ones((6, 1, 8, 8), bool)), "x_test is of dtype bool"),
    "negative pixel": (
        with_value("x_train", 5, -3, np.int16),
        "x_train, row 5: it holds -3",
    ),
    "large pixel": (
        with_value("x_test", 2, 4096, np.uint16),
        "x_test, row 2: it holds 4096",
    ),
    "NaN": (floats(np.nan), "x_train, row 7: it holds nan, not a finite float32"),
    "infinity": (floats(-np.inf), "x_train, row 7: it holds -inf, not a finite"),
    "more than a float32": (floats(1e300), r"x_train, row 7: it holds 1e\+300, not a finite"),
    "other size": (images(x_test=np.zeros((6, 1, 9, 8), np.uint8)), r"x_test\[0\] .*\(1, 9, 8\)"),
    "other dtype": (images(x_test=np.zeros((6, 1, 8, 8), np.float32)), "x_test is float32 and"),
    "two channels": (images(x_train=np.zeros((12, 2, 8, 8), np.uint8)), "x_train has 2 channels"),
    "channels last": (images(x_train=np.zeros((12, 8, 8, 3), np.uint8)), r"transpose\(0, 3, 1, 2"),
    "one axis": (images(x_train=np.zeros(12, np.uint8)), r"x_train has shape \(12,\)"),
    "five axes": (images(x_test=np.zeros((6, 1, 8, 8, 8), np.uint8)), "x_test has shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arrays_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    arrays, message = REFUSED[case]
    with pytest.raises(DataError, match=message) as caught:
        store("mine", Raw(**arrays), tmp_path)
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_declared_classes_and_statistics_are_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="y_train, row 2: the label is 2, but there are 2 classes"):
        store("mine", Raw(**images(), classes=2), tmp_path)
    with pytest.raises(DataError, match="mean has 3 values and std 1"):
        store("mine", Raw(**images(), mean=(0.5,) * 3, std=(0.5,)), tmp_path)
    with pytest.raises(DataError, match="every std above 0"):
        store("mine", Raw(**images(), mean=(0.5,), std=(0.0,)), tmp_path)
    assert store("mine", Raw(**images(), classes=5), tmp_path).classes == 5


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.zeros((12, 3, 8, 8), np.int64), np.uint8),
        (np.zeros((12, 4, 8, 8), np.float64), np.float32),
        (np.zeros((12, 1, 8, 8), ">f4"), np.float32),
        (np.zeros((12, 5), np.int32), np.float32),
        (np.zeros((12, 5), np.float16), np.float32),
    ],
)
def test_dtypes_are_converted(x: np.ndarray, dtype: type, tmp_path: Path) -> None:
    labels = np.arange(6, dtype=np.uint8) % 3
    dataset = store("mine", Raw(**images(x_train=x, x_test=x[:6], y_test=labels)), tmp_path)
    assert dataset.x_train.dtype == dataset.x_test.dtype == dtype
    assert dataset.y_test.dtype == np.int64
    assert dataset.shape == x.shape[1:]
