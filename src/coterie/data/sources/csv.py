"""`csv`: images listed in CSV files with the user each belongs to, such as GLD-23K."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.checks import NOBODY
from coterie.data.datasets import Groups, Raw
from coterie.data.formats import images, locate

_TEST_SHARE = 5  # one in so many of a user's samples is held out
_USER, _IMAGE, _CLASS = "user_id", "image_id", "class"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns of one CSV file, and the files of its images."""

    users: list[str]
    classes: list[str]
    paths: list[Path]


def files(root: str) -> tuple[Path, ...]:
    """Both CSV files and the images they list."""
    folder = locate.given("csv", root)
    train, test = _tables(folder)
    return (_listing(folder, "train"), _listing(folder, "test"), *train.paths, *test.paths)


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode the listed images; users and classes are numbered in their order.

    The test file has no users, so a fifth of every user's samples is held out for tests of its
    own; the listed test samples stay those of the global model.
    """
    listed, test = _tables(locate.given("csv", root))
    classes, users = locate.ordered(listed.classes + test.classes), locate.ordered(listed.users)
    train, own = _hold_out(listed)
    parts = {"x_train": train.paths, "x_test": [*test.paths, *own.paths]}
    x_train, x_test = images.decode(parts, resize, scratch)
    half = (0.5,) * x_train.shape[1]
    nobody = np.full(len(test.paths), NOBODY, np.int64)
    whose = np.concatenate([nobody, _numbers(own.users, users)]) if own.paths else nobody[:0]
    return Raw(
        x_train,
        _numbers(train.classes, classes),
        x_test,
        _numbers([*test.classes, *own.classes], classes),
        len(classes),
        mean=half,
        std=half,
        groups=Groups(_numbers(train.users, users), whose, tuple(users)),
    )


def _hold_out(rows: _Rows) -> tuple[_Rows, _Rows]:
    """What a user trains on and is tested on: every fifth of its samples in the order of classes.

    The order within a class is drawn, the same in every run. Classes so lose their fifth as evenly
    as their numbers allow; a user with fewer than five samples keeps all.
    """
    drawn = np.random.default_rng(0).permutation(len(rows.users)).tolist()
    order = sorted(range(len(drawn)), key=lambda r: (rows.users[r], rows.classes[r], drawn[r]))
    held, seen, user = set(), 0, None
    for row in order:
        seen = seen + 1 if rows.users[row] == user else 1
        user = rows.users[row]
        if seen % _TEST_SHARE == 0:
            held.add(row)
    kept = [row for row in range(len(drawn)) if row not in held]
    return _pick(rows, kept), _pick(rows, sorted(held))


def _pick(rows: _Rows, chosen: Sequence[int]) -> _Rows:
    return _Rows(
        [rows.users[row] for row in chosen],
        [rows.classes[row] for row in chosen],
        [rows.paths[row] for row in chosen],
    )


def _tables(root: Path) -> tuple[_Rows, _Rows]:
    listings = [_listing(root, "train"), _listing(root, "test")]
    folder = root / "images"
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; put the images there as IMAGE_ID.jpg")
    known: dict[str, Path] = {}
    for path in locate.below(folder, images.ENDINGS):
        if known.setdefault(path.stem, path) != path:
            raise DataError(f"{path} and {known[path.stem]} have one image_id; remove one of them")
    train, test = (_read(listing, folder, known) for listing in listings)
    return train, test


def _listing(root: Path, part: str) -> Path:
    """The one CSV file with `train` or `test` in its name, in the root or in a folder of it."""
    for pattern in ("*.csv", "*/*.csv"):
        found = sorted(path for path in root.glob(pattern) if part in path.name.lower())
        if len(found) > 1:
            raise DataError(f"{found[0]} and {found[1]} both list {part} samples; keep one of them")
        if found:
            return found[0]
    raise DataError(
        f"{root} holds no file *{part}*.csv; put one with the columns {_USER}, {_IMAGE}, {_CLASS} "
        "there"
    )


def _read(listing: Path, folder: Path, known: dict[str, Path]) -> _Rows:
    """The rows of a CSV file; test samples need no user."""
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
        raise DataError(f"{origin}: {folder} holds no image {image!r}; add it or remove the row")
    rows.users.append(values.get(_USER, ""))
    rows.classes.append(values[_CLASS])
    rows.paths.append(path)


def _numbers(values: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """The place of every value among the names."""
    places_of = {name: place for place, name in enumerate(names)}
    return np.array([places_of[value] for value in values], np.int64)
