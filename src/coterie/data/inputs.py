"""Samples for a trained model, read from a path: images, arrays, or a table of numbers.

FOLDER         all images below it; a folder in it, apart from train, test and val, is a class
FILE.png, ...  one image
FILE.npz       x and y, else x_test and y_test, else x_train and y_train; y may be absent
FILE.npy       x
FILE.csv       a header and numbers: x, a row a sample

`read_table` reads a CSV or Parquet file with its columns by name, of numbers or text.
"""

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import paths
from coterie.core.errors import DataError
from coterie.core.formatting import quote
from coterie.data.formats import images, locate, npz, tables
from coterie.data.formats.tree import NONE
from coterie.data.table import Table

_PARTS = ("train", "test", "val")
_ARRAYS = [
    names for part in ("", "_test", "_train") for names in ((f"x{part}", f"y{part}"), (f"x{part}",))
]
Classes = Collection[str]
_LARGEST = float(np.finfo(np.float32).max)
_KINDS = "a folder of images, an image, or a file .npz, .npy or .csv"


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Samples as they are stored, their labels if there are any, and a name for each.

    Images are uint8 (N, C, H, W), rows of a CSV file float32 (N, F), arrays as in their file.
    Labels are as they were given, None where a sample has none.
    """

    x: Any  # an array, or a table
    y: np.ndarray | None
    names: tuple[str, ...]  # the file's path below the folder, or the row as errors call it


def read_path(
    path: str | PathLike[str],
    *,
    resize: int = 0,
    channels: int = 0,
    size: tuple[int, ...] = (),
    classes: Classes = (),
) -> Inputs:
    """Read samples from a folder or file.

    `resize`, `channels` and `size` (height, width) are what image files are brought to:
    `images.decode_files` explains them. The label of an image is a folder that it is in: one of
    the `classes`, if there is any such folder.
    """
    path = locate.expand_path(str(path))
    if path.is_dir():
        files = locate.list_files_below(path, images.ENDINGS)
        if not files:
            endings = ", ".join(images.ENDINGS)
            raise DataError(f"{path} contains no image ({endings}); give {_KINDS}")
        return _read_images(path, files, (resize, channels, size), classes)
    if problem := paths.find_problem(path):
        raise DataError(f"{path} {problem}; give {_KINDS}")
    ending = path.suffix.lower()
    if ending in images.ENDINGS:
        return _read_images(path.parent, [path], (resize, channels, size), classes)
    if ending == ".npz":
        x, *y = npz.read_first(path, _ARRAYS).values()
        return _check_arrays(path, x, y[0] if y else None)
    if ending == ".npy":
        return _check_arrays(path, npz.read_single(path), None)
    if ending == ".csv":
        x, lines = read_numbers(path)
        return Inputs(x, None, tuple(map(str, lines)))
    raise DataError(f"{path} is of no known kind; give {_KINDS}")


def is_table(path: str | PathLike[str]) -> bool:
    """Whether this is a file with named columns, by its ending."""
    return Path(path).suffix.lower() in tables.ENDINGS


def read_table(path: str | PathLike[str], origin: str = "") -> Table:
    """Read a file with named columns; errors about its cells begin with `origin`, or the path."""
    expanded = locate.expand_path(str(path))
    problem = paths.find_problem(expanded)
    if problem not in (None, paths.FOLDER):
        raise DataError(f"{expanded} {problem}; give a file .csv or .parquet")
    if problem or not is_table(expanded):
        raise DataError(f"{expanded} is no table; give a file .csv or .parquet")
    return tables.read(expanded, origin)


def _read_images(
    root: Path, files: Sequence[Path], form: tuple[int, int, tuple[int, ...]], classes: Classes
) -> Inputs:
    below = [file.relative_to(root) for file in files]
    labels = [_find_class(path, classes) for path in below]
    y = np.array(labels, object) if any(label is not None for label in labels) else None
    x = images.decode_files(files, *form)
    return Inputs(x, y, tuple(path.as_posix() for path in below))


def _find_class(path: Path, classes: Classes) -> str | None:
    """Return the folder of an image that is a known class, else the topmost one."""
    folders = [folder for folder in path.parts[:-1] if folder not in (NONE, *_PARTS)]
    known = [folder for folder in reversed(folders) if folder in classes]
    return next(iter((*known, *folders)), None)


def _check_arrays(path: Path, x: np.ndarray, y: np.ndarray | None) -> Inputs:
    if x.ndim < 2 or x.size == 0:
        raise DataError(
            f"{path} has samples of shape {x.shape}; give an array of one sample or more, the "
            "first axis counts them"
        )
    if y is not None and y.shape != (len(x),):
        raise DataError(
            f"{path} has {len(x)} samples and labels of shape {y.shape}; give one label each, or "
            "leave y out"
        )
    return Inputs(x, y, _number(len(x)))


def _number(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def read_numbers(path: Path) -> tuple[np.ndarray, tuple[int, ...]]:
    """Read the numbers of a CSV file below its header, as float32 (N, F), and their lines."""
    locate.check_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(_parse_rows(path, stream))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); write it as UTF-8 CSV") from error
    if not rows:
        raise DataError(f"{path} has no row below its header; add samples")
    lines, numbers = zip(*rows, strict=True)
    return np.array(numbers, np.float32), lines


def _parse_rows(path: Path, stream: Iterator[str]) -> Iterator[tuple[int, list[float]]]:
    reader = csv.reader(stream, skipinitialspace=True)
    header = next(reader, [])
    if header and all(_parse_number(text) is not None for text in header):
        raise DataError(f"{path}:1 has numbers only; begin with a header, a name a column")
    for cells in reader:
        if not cells:  # a blank line
            continue
        where = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            raise DataError(
                f"{where} has {len(cells)} cells, and the header {len(header)}; make them equal"
            )
        numbers = [_parse_number(text) for text in cells]
        for column, text, number in zip(header, cells, numbers, strict=True):
            if number is None:
                raise DataError(
                    f"{where}: column {quote(column.strip())} has {quote(text)}, which is no "
                    "finite number; correct it or leave the column out"
                )
        yield reader.line_num, [number for number in numbers if number is not None]


def _parse_number(text: str) -> float | None:
    """Parse a number that is finite as float32; None for other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= _LARGEST else None  # false for NaN
