"""What a Python program may pass as samples, and what becomes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from coterie.core.errors import DataError
from coterie.data.encoding import stack_numbers
from coterie.data.labels import clean
from coterie.data.samples import read_samples, split_frame
from coterie.data.table import Table

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = [0, 1, 0, 1]


class Alone(Dataset[torch.Tensor]):
    """A data set of x alone."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(X[index])


FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})

FORMS: dict[str, tuple[Any, Any]] = {
    "array": (X, None),
    "tensor": (torch.from_numpy(X).requires_grad_(), None),
    "list of lists": (X.tolist(), None),
    "list of tensors": (list(torch.from_numpy(X)), None),
    "pair": ((X, Y), Y),
    "pair without labels": ((X, None), None),
    "pair of tensors": ((torch.from_numpy(X), torch.tensor(Y)), Y),
    "frame": (FRAME, None),
    "pair of frame and column": ((FRAME, pd.Series(Y)), Y),
    "torch data set of pairs": (TensorDataset(torch.from_numpy(X), torch.tensor(Y)), Y),
    "torch data set of samples": (Alone(), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_numbers(form: str) -> None:
    given, expected = FORMS[form]
    read = read_samples(given)
    x = stack_numbers(read.x) if isinstance(read.x, Table) else read.x
    assert np.array_equal(x, X)
    assert isinstance(read.x, Table) == ("frame" in form)
    assert (read.y is None) == (expected is None)
    assert expected is None or list(read.y) == expected


def test_a_column_of_a_frame_has_the_labels() -> None:
    frame = FRAME.assign(died=["yes", "no", None, "no"])
    read = read_samples(frame, label="died")
    assert isinstance(read.x, Table) and list(read.x.columns) == ["a", "b", "c"]
    assert clean(read.y, len(frame)).tolist() == ["yes", "no", "", "no"]
    with pytest.raises(DataError, match=r"label='dead' is no column; it has: a, b, c, died"):
        read_samples(frame, label="dead")


def test_labels_of_a_frame_keep_their_text() -> None:
    labels = ["01", " a", "NA", "?"]
    frame = FRAME.assign(site="n", grade=labels)
    assert list(read_samples(frame, label="grade").y) == labels
    assert list(split_frame(frame, "site", "grade")["n"].y) == labels


def test_a_csv_file_has_its_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    FRAME.assign(died=Y).to_csv(path, index=False)
    read = read_samples(path, label="died", name="site 'north'")
    assert isinstance(read.x, Table) and list(read.y) == Y
    assert np.array_equal(stack_numbers(read.x), X)


def test_a_frame_is_split_by_its_column_of_sites() -> None:
    parts = split_frame(FRAME.assign(site=["s", "n", "s", "n"], y=Y), "site", "y")
    assert list(parts) == ["n", "s"]
    south = parts["s"].x
    assert isinstance(south, Table) and south.columns["a"].tolist() == [0.0, 6.0]
    assert list(parts["n"].y) == [1, 1]
    with pytest.raises(DataError, match="row 1, column 'site': the site is missing"):
        split_frame(FRAME.assign(site=["s", None, "s", "n"]), "site")


class Ragged:
    """A data set with one sample of another shape."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3 if number == 2 else 2), 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, Y, Y), r"a tuple is \(x, y\), and this one has 3 entries"),
        ([[1, 2], [3]], r"site 'a', row 1: the sample has shape \(1,\), and row 0 \(2,\)"),
        ([[1, 2], [3, 4], [[1], [2, 3]]], "site 'a', row 2 cannot be read as an array"),
        (
            Ragged(),
            r"site 'a', row 2: the sample has shape \(3,\), and row 0 \(2,\); .* one shape$",
        ),
        ([X, np.array(Y)], r"row 1: .* one shape; a tuple \(x, y\) is samples and labels$"),
    ],
)
def test_what_is_no_sample_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_samples(given, name="site 'a'")
