"""From samples as a user has them to what a trained network takes."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import DataError
from coterie.core.formatting import list_first
from coterie.data.augment import Normalise
from coterie.data.encoding import TableColumn, clear_gaps, encode, stack_numbers
from coterie.data.inputs import Inputs, read_path, read_table
from coterie.data.samples import read_samples
from coterie.data.table import Table
from coterie.data.table_sites import describe_filled
from coterie.experiment.model_file import InputDescription

_BYTE = 255


def to_input(x: Any, wanted: InputDescription, client: str | None = None) -> Tensor:
    """Convert samples in the form of the training data to normalised float32 tensors.

    `client` chooses the statistics of a table that was standardised for each site by itself.
    """
    is_path = isinstance(x, str | PathLike)
    read = read_files(x, wanted).x if is_path else x
    read = read if isinstance(read, Table) else read_samples(read, name="x").x
    if wanted.columns:
        columns = list(map(TableColumn.from_plain, wanted.columns))
        return torch.from_numpy(encode(columns, _check_table(read, columns), client))
    array = _arrange(stack_numbers(read) if isinstance(read, Table) else read, wanted)
    if array.dtype.kind not in "biuf":
        raise DataError(f"x has {array.dtype} entries: it must have numbers")
    array = _check_bytes(array) if wanted.dtype == "uint8" else _check_floats(array, wanted)
    normalise = Normalise(tuple(wanted.mean), tuple(wanted.std))
    return normalise(normalise.unit(torch.from_numpy(np.ascontiguousarray(array))))


def read_files(
    path: str | PathLike[str], wanted: InputDescription, classes: Sequence[int | str] = ()
) -> Inputs:
    """Read files; images are brought to the form that the network was trained on.

    A table has labels if it has the column of labels that the run was trained with.
    """
    if wanted.columns:
        table = read_table(path)
        y = table.columns.get(wanted.label) if wanted.label else None
        return Inputs(table, y, tuple(map(str, table.rows)))
    form = wanted.shape if wanted.kind == "image" else (0,)
    names = [str(name) for name in classes]
    return read_path(
        path, resize=wanted.resize, channels=form[0], size=tuple(form[1:]), classes=names
    )


def describe_gaps(table: Table, wanted: InputDescription) -> tuple[str, ...]:
    """Say which cells of a table are missing, and what a network gets in their place."""
    columns = list(map(TableColumn.from_plain, wanted.columns))
    cleared = clear_gaps(table, {column.name: column.gaps for column in columns})
    kinds = {column.name: column.kind for column in columns if column.name in table.columns}
    return describe_filled([cleared], kinds)


def _check_table(given: np.ndarray | Table, columns: Sequence[TableColumn]) -> Table:
    """Refuse samples without names of columns, for a run on a table."""
    if not isinstance(given, Table):
        names = list_first([column.name for column in columns])
        raise DataError(
            f"x has no names of columns, and the run was trained on a table with {names}; give a "
            "data frame or a CSV file with these columns"
        )
    if not len(given):
        raise DataError("x has no samples")
    return given


def _arrange(x: np.ndarray, wanted: InputDescription) -> np.ndarray:
    """Bring samples into the layout of the training data: channels first, also a single one."""
    shape = tuple(wanted.shape)
    given = x.shape[1:]
    if x.ndim and given != shape:
        if shape[0] == 1 and given == shape[1:]:
            x = x[:, None]
        elif wanted.kind == "image" and given == (*shape[1:], shape[0]):
            x = np.moveaxis(x, -1, 1)
    if x.ndim == 0 or x.shape[1:] != shape:
        sides = ", ".join(map(str, shape))
        raise DataError(f"x has shape {x.shape}, the run was trained on samples (n, {sides})")
    if len(x) == 0:
        raise DataError("x has no samples")
    return x


def _check_bytes(x: np.ndarray) -> np.ndarray:
    low, high = x.min(), x.max()
    if x.dtype.kind == "f":
        if not (low >= 0.0 and high <= 1.0):  # NaN is refused too
            raise DataError(
                f"x has floats from {low:g} to {high:g}, the run was trained on bytes: give bytes "
                "from 0 to 255, or floats from 0 to 1"
            )
        return x.astype(np.float32)
    if low < 0 or high > _BYTE:
        raise DataError(
            f"x has integers from {low} to {high}, the run was trained on bytes from 0 to 255"
        )
    return x.astype(np.uint8)


def _check_floats(x: np.ndarray, wanted: InputDescription) -> np.ndarray:
    if wanted.kind == "image" and x.dtype.kind != "f":
        raise DataError(
            f"x has images of {x.dtype}, the run was trained on images of floats: convert them as "
            "the training data were"
        )
    finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise DataError(f"x has a value that is not finite in row {row}")
    return x.astype(np.float32)
