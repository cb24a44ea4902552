"""`csv`: images listed in CSV files with the user that each belongs to, such as GLD-23K."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.checks import NOBODY
from coterie.data.datasets import Groups, Raw
from coterie.data.formats import images, locate

_TEST_SHARE = 5  # every fifth sample of a user is held out
_USER, _IMAGE, _CLASS = "user_id", "image_id", "class"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The users and classes of one CSV file, and the paths of its images."""

    users: list[str]
    classes: list[str]
    paths: list[Path]


def files(root: str) -> tuple[Path, ...]:
    """List both CSV files and the images in them."""
    folder = locate.require_folder("csv", root)
    train, test = _read_listings(folder)
    listings = (_find_listing(folder, part) for part in ("train", "test"))
    return (*listings, *train.paths, *test.paths)


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode the listed images; users and classes are numbered in their order.

    The test file has no users, so a fifth of every user's samples is held out to test its own
    model; the listed test samples are for the global model.
    """
    listed, test = _read_listings(locate.require_folder("csv", root))
    classes = locate.sort_names(listed.classes + test.classes)
    users = locate.sort_names(listed.users)
    train, own = _hold_out(listed)
    parts = {"x_train": train.paths, "x_test": [*test.paths, *own.paths]}
    x_train, x_test = images.decode(parts, resize, scratch)
    half = (0.5,) * x_train.shape[1]
    nobody = np.full(len(test.paths), NOBODY, np.int64)
    test_users = np.concatenate([nobody, _number(own.users, users)]) if own.paths else nobody[:0]
    return Raw(
        x_train,
        _number(train.classes, classes),
        x_test,
        _number([*test.classes, *own.classes], classes),
        len(classes),
        mean=half,
        std=half,
        groups=Groups(_number(train.users, users), test_users, tuple(users)),
    )


def _hold_out(rows: _Rows) -> tuple[_Rows, _Rows]:
    """Split each user's samples: every fifth one, in the order of classes, is for testing.

    The order within a class is random, the same in every run. Classes lose their fifth as evenly
    as possible; a user with fewer than five samples keeps all.
    """
    drawn = np.random.default_rng(0).permutation(len(rows.users)).tolist()
    order = sorted(range(len(drawn)), key=lambda r: (rows.users[r], rows.classes[r], drawn[r]))
    held_out, seen, user = set(), 0, None
    for row in order:
        seen = seen + 1 if rows.users[row] == user else 1
        user = rows.users[row]
        if seen % _TEST_SHARE == 0:
            held_out.add(row)
    kept = [row for row in range(len(drawn)) if row not in held_out]
    return _pick(rows, kept), _pick(rows, sorted(held_out))


def _pick(rows: _Rows, chosen: Sequence[int]) -> _Rows:
    return _Rows(
        [rows.users[row] for row in chosen],
        [rows.classes[row] for row in chosen],
        [rows.paths[row] for row in chosen],
    )


def _read_listings(root: Path) -> tuple[_Rows, _Rows]:
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


def _read(listing: Path, folder: Path, known: dict[str, Path]) -> _Rows:
    """Read the rows of a CSV file; test samples need no user."""
    needed = [_IMAGE, _CLASS] if "test" in listing.name.lower() else [_USER, _IMAGE, _CLASS]
    rows = _Rows([], [], [])
    try:
        with listing.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            for column in needed:
                if column not in columns:
                    raise DataError(
                        f"{listing} has no column {column!r} (it has: {', '.join(columns)}); add it"
                    )
            for row in reader:
                values = {column: (row[column] or "").strip() for column in needed}
                _add(rows, values, f"{listing}:{reader.line_num}", folder, known)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{listing} cannot be read ({error}); write it as UTF-8 CSV") from error
    if not rows.paths:
        raise DataError(f"{listing} lists no sample; add rows")
    return rows


def _add(
    rows: _Rows, values: dict[str, str], origin: str, folder: Path, known: dict[str, Path]
) -> None:
    for column, value in values.items():
        if not value:
            raise DataError(f"{origin}: {column} is empty; fill it in or remove the row")
    image = values[_IMAGE]
    path = known.get(image) or known.get(Path(image).stem)
    if path is None:
        raise DataError(f"{origin}: {folder} has no image {image!r}; add it or remove the row")
    rows.users.append(values.get(_USER, ""))
    rows.classes.append(values[_CLASS])
    rows.paths.append(path)


def _number(values: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Replace every value by its position among the names."""
    positions = {name: position for position, name in enumerate(names)}
    return np.array([positions[value] for value in values], np.int64)
