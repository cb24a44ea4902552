"""Samples that a Python program passes in: arrays, tensors, lists, data frames, torch data sets.

A tuple of two is (x, y); everything else is x alone. A text or path names files, as on the command
line.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.data.labels import is_missing

_PAIR = 2


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Samples and labels as arrays, in the user's own layout."""

    x: np.ndarray
    y: Any = None  # None: no labels
    names: Sequence[str] = ()  # of the samples, where they have any: paths of image files


def read_samples(given: Any, *, label: str | None = None, name: str = "the samples") -> Given:
    """Read what a user passed in; `label` is the column of a data frame that has the labels.

    Errors begin with `name`.
    """
    if isinstance(given, Given):
        return given
    if label is not None and not is_frame(given):
        raise ConfigError(f"label={label!r} is a column of a data frame, and {name} is none")
    if isinstance(given, str | os.PathLike):
        from coterie.data.inputs import read_path

        files = read_path(given)
        return Given(files.x, files.y, files.names)
    if isinstance(given, tuple):
        if len(given) != _PAIR:
            raise DataError(
                f"{name}: a tuple is (x, y), and this one has {len(given)} entries; give a list "
                "for samples alone"
            )
        x, y = given
        return Given(_read_array(x, name), None if y is None else read_labels(y, name))
    if is_frame(given):
        return _read_frame(given, label, name)
    if _is_dataset(given):
        return _read_dataset(given, name)
    return Given(_read_array(given, name))


def is_frame(given: Any) -> bool:
    """Whether this is a data frame, of pandas or another library with the same methods."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def split_frame(frame: Any, site: str) -> dict[str, Any]:
    """Split a data frame by its column `site` into one per site, in the order of their names."""
    _require_column(frame, site, "site")
    column = np.asarray(frame[site].to_numpy())
    values = column.tolist()
    if absent := [row for row, value in enumerate(values) if is_missing(value)]:
        raise DataError(f"row {absent[0]}, column {site!r}: the site is missing; fill it in")
    text = np.array([str(value) for value in values])
    rest = frame.drop(columns=[site])
    return {str(name): rest[text == name] for name in np.unique(text)}


def drop_column(frame: Any, column: str) -> Any:
    """Leave a column of a data frame out, if it is there."""
    return frame.drop(columns=[column]) if column in frame.columns else frame


def _read_frame(frame: Any, label: str | None, name: str) -> Given:
    """Read the columns of a data frame as features, apart from the label."""
    y = None
    if label is not None:
        _require_column(frame, label, "label")
        y, frame = frame[label].to_numpy(), frame.drop(columns=[label])
    columns = []
    for column in frame.columns:
        values = np.asarray(frame[column].to_numpy())
        if values.dtype.kind not in "biuf":
            values = _read_numbers(values, f"{name}, column {column!r}")
        columns.append(values.astype(np.float64))
    if not columns:
        raise DataError(f"{name}: the data frame has no column of features")
    return Given(np.column_stack(columns).astype(np.float32), y)


def _read_numbers(values: np.ndarray, name: str) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name}: {values[0]!r} is not a number; drop the column or encode it as numbers"
        ) from error


def _require_column(frame: Any, column: str, argument: str) -> None:
    if column not in frame.columns:
        have = ", ".join(map(str, frame.columns))
        raise DataError(f"{argument}={column!r} is no column of the data frame; it has: {have}")


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
    if is_frame(values):
        return _read_frame(values, None, name).x
    try:
        if isinstance(values, list):
            array = np.stack([_to_numpy(value) for value in values]) if values else np.empty((0, 0))
        else:
            array = _to_numpy(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{name} cannot be read as an array of equal samples ({reason})") from error
    if array.ndim == 0 or array.dtype.kind == "O":
        remedy = "; call its .toarray()" if hasattr(values, "toarray") else ""
        raise DataError(f"{name} is a {type(values).__name__}, not an array of samples{remedy}")
    return array


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
