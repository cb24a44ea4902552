"""`csv`: images listed in CSV files with the user that each belongs to, such as GLD-23K.

Without a column `class`, or where it is empty, images have no label.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.core.errors import DataError
from coterie.core.formatting import quote
from coterie.data.checks import NOBODY
from coterie.data.datasets import Groups, Raw
from coterie.data.formats import images, locate
from coterie.data.formats.images import LabelledFiles
from coterie.data.labels import MISSING

_TEST_SHARE = 5  # every fifth sample of a user is held out
_USER, _IMAGE, _CLASS = "user_id", "image_id", "class"


class _Row(NamedTuple):
    """One line of a CSV file, with the path of its image."""

    user: str
    label: str
    path: Path


def files(root: str) -> tuple[Path, ...]:
    """List both CSV files and the images in them."""
    folder = locate.require_own("csv", root)
    train, test = _read_listings(folder)
    listings = (_find_listing(folder, part) for part in ("train", "test"))
    return (*listings, *(row.path for row in train + test))


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode the listed images; users and classes are numbered in their order.

    The test file has no users, so a fifth of every user's samples is held out to test its own
    model; the listed test samples are for the global model.
    """
    listed, test = _read_listings(locate.require_own("csv", root))
    classes = locate.sort_names(row.label for row in listed + test if row.label)
    users = locate.sort_names(row.user for row in listed)
    train, own = _hold_out(listed)
    for_train, for_test = (
        LabelledFiles([row.path for row in rows], _number((row.label for row in rows), classes))
        for rows in (train, test + own)
    )
    of_train, of_own = (_number((row.user for row in rows), users) for rows in (train, own))
    of_test = np.concatenate([np.full(len(test), NOBODY), of_own]) if own else of_own
    groups = Groups(of_train, of_test, tuple(users))
    raw = images.decode(for_train, for_test, resize, scratch)
    return replace(raw, classes=len(classes), class_names=tuple(classes), groups=groups)


def _hold_out(rows: Sequence[_Row]) -> tuple[list[_Row], list[_Row]]:
    """Split each user's samples: every fifth one, in the order of classes, is for testing.

    The order within a class is random, the same in every run. Classes lose their fifth as evenly
    as possible; a user with fewer than five samples keeps all.
    """
    drawn = np.random.default_rng(0).permutation(len(rows)).tolist()
    order = sorted(range(len(rows)), key=lambda r: (rows[r].user, rows[r].label, drawn[r]))
    held_out = set()
    for _, own in groupby(order, key=lambda r: rows[r].user):
        held_out.update(list(own)[_TEST_SHARE - 1 :: _TEST_SHARE])
    kept = [row for number, row in enumerate(rows) if number not in held_out]
    return kept, [rows[number] for number in sorted(held_out)]


def _read_listings(root: Path) -> tuple[list[_Row], list[_Row]]:
    listings = [_find_listing(root, "train"), _find_listing(root, "test")]
    folder = root / "images"
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; put the images there as IMAGE_ID.jpg")
    known: dict[str, Path] = {}
    for path in locate.list_files_below(folder, images.ENDINGS):
        if known.setdefault(path.stem, path) != path:
            raise DataError(f"{path} and {known[path.stem]} have the same image_id; remove one")
    train, test = (_read(listing, folder, known) for listing in listings)
    return train, test


def _find_listing(root: Path, part: str) -> Path:
    """Find the one CSV file with `train` or `test` in its name, in the root or a subfolder."""
    for pattern in ("*.csv", "*/*.csv"):
        files = sorted(path for path in root.glob(pattern) if part in path.name.lower())
        if len(files) > 1:
            raise DataError(f"{files[0]} and {files[1]} both list {part} samples; keep one")
        if files:
            return files[0]
    raise DataError(
        f"{root} has no file *{part}*.csv; put one with the columns {_USER}, {_IMAGE}, {_CLASS} "
        "there"
    )


def _read(listing: Path, folder: Path, known: dict[str, Path]) -> list[_Row]:
    """Read the rows of a CSV file; test samples need no user."""
    needed = [_IMAGE] if "test" in listing.name.lower() else [_USER, _IMAGE]
    rows = []
    locate.check_file(listing)
    try:
        with listing.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            for column in needed:
                if column not in columns:
                    raise DataError(
                        f"{listing} has no column {quote(column)} (it has: "
                        f"{', '.join(columns)}); add it"
                    )
            for row in reader:
                values = {column: (row[column] or "").strip() for column in needed}
                label = (row.get(_CLASS) or "").strip()
                place = f"{listing}:{reader.line_num}"
                rows.append(_make_row(values, label, place, folder, known))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{listing} cannot be read ({error}); write it as UTF-8 CSV") from error
    if not rows:
        raise DataError(f"{listing} lists no sample; add rows")
    return rows


def _make_row(
    values: dict[str, str], label: str, origin: str, folder: Path, known: dict[str, Path]
) -> _Row:
    for column, value in values.items():
        if not value:
            raise DataError(f"{origin}: {column} is empty; fill it in or remove the row")
    image = values[_IMAGE]
    path = known.get(image) or known.get(Path(image).stem)
    if path is None:
        raise DataError(f"{origin}: {folder} has no image {quote(image)}; add it or remove the row")
    return _Row(values.get(_USER, ""), label, path)


def _number(values: Iterable[str], names: Sequence[str]) -> np.ndarray:
    """Replace every value by its position among the names; -1 for an empty one."""
    positions = {name: position for position, name in enumerate(names)} | {"": MISSING}
    return np.array([positions[value] for value in values], np.int64)
