"""Samples that a Python program passes in: arrays, tensors, lists, data frames, torch data sets.

A tuple of two is (x, y); everything else is x alone. A text or path names files, as on the command
line.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.data.inputs import is_table, read_path, read_table
from coterie.data.table import Table, group_rows, read_frame

_PAIR = 2


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Samples and labels in the user's own layout: arrays, or a table with named columns."""

    x: np.ndarray | Table
    y: Any = None  # None: no labels
    names: Sequence[str] = ()  # of the samples, where they have any: paths of image files


def read_samples(given: Any, *, label: str | None = None, name: str = "the samples") -> Given:
    """Read what a user passed in; `label` is the column of a table that has the labels.

    Errors begin with `name`.
    """
    if isinstance(given, Given):
        return given
    is_path = isinstance(given, str | os.PathLike)
    if is_path and is_table(given):
        return _split_label(read_table(given, name), label)
    if label and not is_frame(given):
        raise ConfigError(f"label={label!r} is a column of a data frame, and {name} is none")
    if is_path:
        files = read_path(given)
        return Given(files.x, files.y, files.names)
    if isinstance(given, tuple):
        if len(given) != _PAIR:
            raise DataError(
                f"{name}: a tuple is (x, y), and this one has {len(given)} entries; give a list "
                "for samples alone"
            )
        x, y = given
        read = read_frame(x, name) if is_frame(x) else _read_array(x, name)
        return Given(read, None if y is None else read_labels(y, name))
    if is_frame(given):
        return _read_frame(given, label, name)
    if _is_dataset(given):
        return _read_dataset(given, name)
    return Given(_read_array(given, name))


def is_frame(given: Any) -> bool:
    """Whether this is a data frame, of pandas or another library with the same methods."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def split_frame(frame: Any, site: str, label: str | None = None) -> dict[str, Given]:
    """Split a data frame by its column `site` into one per site, in the order of their names."""
    whole = _read_frame(frame, label, "the data frame", site)
    assert isinstance(whole.x, Table)  # as of every data frame
    return {
        name: Given(part, None if whole.y is None else whole.y[rows])
        for name, (rows, part) in group_rows(whole.x, site, "site").items()
    }


def _read_frame(frame: Any, label: str | None, name: str, site: str = "") -> Given:
    """Read the columns of a data frame; labels stay as they are there, text as numbers too."""
    given = _split_label(read_frame(frame, name, site), label)
    if not label:
        return given
    column = next(column for column in frame.columns if str(column) == label)
    return replace(given, y=np.asarray(frame[column].to_numpy()))


def _split_label(table: Table, label: str | None) -> Given:
    """Split the column of labels off, if there is one."""
    if not label:
        return Given(table)
    y, rest = table.split_off(label, "label")
    return Given(rest, y)


def _is_dataset(given: Any) -> bool:
    """Whether this is a torch `Dataset`: items by number, and a length."""
    arrays = ("__array__", "toarray")  # the second: matrices of scipy
    plain = isinstance(given, list | np.ndarray | Mapping) or any(hasattr(given, a) for a in arrays)
    return not plain and hasattr(given, "__getitem__") and hasattr(given, "__len__")


def _read_dataset(given: Any, name: str) -> Given:
    """Read all items of a torch `Dataset` of x or (x, y)."""
    items = [given[number] for number in range(len(given))]
    if all(isinstance(item, tuple | list) and len(item) == 1 for item in items):
        items = [item[0] for item in items]  # as those of TensorDataset(x)
    paired = [isinstance(item, tuple | list) for item in items]
    if any(paired) and not all(len(item) == _PAIR for item in items):
        raise DataError(f"{name}: the items of a data set are x or (x, y), all of one form")
    if not any(paired):
        return Given(_read_array(items, name))
    samples, labels = zip(*items, strict=True)
    return Given(_read_array(list(samples), name), read_labels(list(labels), name))


def _read_array(values: Any, name: str) -> np.ndarray:
    array = _stack(values, name) if isinstance(values, list) else _convert(values, name)
    if array.ndim == 0 or array.dtype.kind == "O":
        remedy = "; call its .toarray()" if hasattr(values, "toarray") else ""
        raise DataError(f"{name} is a {type(values).__name__}, not an array of samples{remedy}")
    return array


def _stack(values: list[Any], name: str) -> np.ndarray:
    """Stack samples; the error names the first one whose shape is not that of the others."""
    if not values:
        return np.empty((0, 0))
    samples = [_convert(value, f"{name}, row {row}") for row, value in enumerate(values)]
    for row, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            pair = len(samples) == _PAIR and sample.ndim != samples[0].ndim
            remedy = "; a tuple (x, y) is samples and labels" if pair else ""
            raise DataError(
                f"{name}, row {row}: the sample has shape {sample.shape}, and row 0 "
                f"{samples[0].shape}; give all samples one shape{remedy}"
            )
    return np.stack(samples)


def _convert(values: Any, name: str) -> np.ndarray:
    try:
        return _to_numpy(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{name} cannot be read as an array of numbers ({reason})") from error


def read_labels(values: Any, name: str = "y") -> Any:
    """Read labels as an array or list of plain values; errors begin with `name`."""
    try:
        if isinstance(values, list | tuple):
            return [_to_scalar(value) for value in values]
        return _to_numpy(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: the labels cannot be read ({error})") from error


def _to_numpy(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):  # a tensor, perhaps on a GPU or with gradients
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    elif hasattr(values, "to_numpy"):  # a column of a data frame
        values = values.to_numpy()
    return np.asarray(values)


def _to_scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
