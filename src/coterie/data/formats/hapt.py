"""Files of HAPT (UCI): signals of a phone at the waist, as .npz per person or as published.

Published: `labels.txt` has a row `experiment user activity first last` for each stretch of one
activity. Two files for each experiment, `acc_exp01_user01.txt` and `gyro_exp01_user01.txt`, have a
row of three numbers for each point, 50 a second. `first` and `last` count points from 0, and both
belong to the stretch. Windows of 128 points begin every 64 points of an experiment; those that lie
in one of the six activities are kept, those with transitions or unnamed points are not.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.formats import locate, npz

CLASSES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
CHANNELS, POINTS, STEP = 6, 128, 64  # of a window; the next one begins a step later
LABELS = "labels.txt"

Windows = tuple[np.ndarray, np.ndarray]  # (n, 6, 128) float32 and (n,) numbers of classes, in time

_ACTIVITIES = 12  # six and the transitions between them
_AXES, _COLUMNS = 3, 5
_RECORDING = re.compile(r"acc_exp(\d+)_user(\d+)\.txt")
_PERSON = re.compile(r"person_\w+\.npz")


def list_persons(folder: Path) -> list[Path]:
    """List the files `person_NN.npz` in the order of their names."""
    return sorted(path for path in folder.glob("*.npz") if _PERSON.fullmatch(path.name))


def list_recordings(folder: Path) -> list[Path]:
    """List the published files: the labels, then both files of every experiment."""
    signals = [path for kind in ("acc", "gyro") for path in sorted(folder.glob(f"{kind}_exp*.txt"))]
    return [folder / LABELS, *signals]


def read_persons(folder: Path) -> dict[str, Windows]:
    """Read one .npz file per person, with arrays x and y."""
    return {path.stem: _read_person(path) for path in list_persons(folder)}


def read_recordings(folder: Path) -> dict[str, Windows]:
    """Read the published files and cut windows; persons are named `person_01` and so on."""
    labels = _read_labels(folder / LABELS)
    persons: dict[int, list[Windows]] = {}
    for experiment, user, acc in _list_experiments(folder):
        signal = _read_signal(acc)
        marks = np.full(len(signal), -1)
        for line, activity, first, last in labels.pop((experiment, user), []):
            if last >= len(marks):
                raise DataError(
                    f"{folder / LABELS}, row {line}: the stretch ends at point {last}, and {acc} "
                    f"has {len(marks)} points (0..{len(marks) - 1}); copy both files again"
                )
            marks[first : last + 1] = activity
        persons.setdefault(user, []).append(cut_windows(signal, marks))
    for (experiment, user), rows in labels.items():
        raise DataError(
            f"{folder / LABELS}, row {rows[0][0]}: there is no file "
            f"acc_exp{experiment:02d}_user{user:02d}.txt beside it; add it or remove the row"
        )
    return {
        f"person_{user:02d}": (np.concatenate(x), np.concatenate(y))
        for user, (x, y) in ((u, zip(*parts, strict=True)) for u, parts in sorted(persons.items()))
    }


def cut_windows(signal: np.ndarray, marks: np.ndarray) -> Windows:
    """Cut a signal (time, channels) into windows that lie in one activity, numbered from 1."""
    starts = range(0, len(marks) - POINTS + 1, STEP)
    pure = [
        start
        for start in starts
        if 1 <= marks[start] <= len(CLASSES)
        and (marks[start : start + POINTS] == marks[start]).all()
    ]
    if not pure:
        return np.empty((0, signal.shape[1], POINTS), np.float32), np.empty(0, np.int64)
    x = np.stack([signal[start : start + POINTS].T for start in pure])
    return x.astype(np.float32), marks[pure].astype(np.int64) - 1


def _read_person(path: Path) -> Windows:
    arrays = npz.read_first(path, [("x", "y")], only=frozenset(("x", "y")))
    x, y = arrays["x"], arrays["y"]
    if x.shape[1:] != (CHANNELS, POINTS) or x.ndim != 3 or x.dtype.kind != "f":
        raise DataError(
            f"{path}: x is {x.dtype} {x.shape} instead of floats (windows, {CHANNELS}, {POINTS}); "
            "write it again"
        )
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"{path}: y is {y.dtype} {y.shape} instead of {len(x)} integers; write it again"
        )
    if (strange := np.flatnonzero((y < 0) | (y >= len(CLASSES)))).size:
        raise DataError(
            f"{path}, row {strange[0]}: the activity is {y[strange[0]]}, and activities are "
            f"0..{len(CLASSES) - 1} ({', '.join(CLASSES)}); correct it"
        )
    if (broken := np.flatnonzero(~np.isfinite(x).all(axis=(1, 2)))).size:
        raise DataError(f"{path}, row {broken[0]}: x has a value that is not finite; drop that row")
    return x.astype(np.float32, copy=False), y.astype(np.int64)


def _list_experiments(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """List number, user and accelerometer file of every experiment, in the order of numbers."""
    named = ((_RECORDING.fullmatch(path.name), path) for path in folder.glob("acc_exp*.txt"))
    numbered = [(int(match[1]), int(match[2]), path) for match, path in named if match]
    if not numbered:
        raise DataError(f"{folder} has no file acc_expNN_userNN.txt; copy the files of HAPT there")
    yield from sorted(numbered)


def _read_signal(acc: Path) -> np.ndarray:
    """Read both files of an experiment as (time, 6)."""
    gyro = acc.with_name(acc.name.replace("acc_", "gyro_", 1))
    if not gyro.is_file():
        raise DataError(f"{gyro} is missing beside {acc.name}; copy it there")
    parts = [_read_numbers(path, _AXES) for path in (acc, gyro)]
    if len(parts[0]) != len(parts[1]):
        raise DataError(
            f"{gyro} has {len(parts[1])} rows and {acc.name} {len(parts[0])}; copy both again"
        )
    return np.concatenate(parts, axis=1)


def _read_labels(path: Path) -> dict[tuple[int, int], list[tuple[int, int, int, int]]]:
    """Read row, activity, first and last point of the stretches of every (experiment, user)."""
    stretches: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for line, row in enumerate(_read_numbers(path, _COLUMNS).tolist(), 1):
        if any(value != int(value) for value in row):
            raise DataError(f"{path}, row {line}: {row} are not all whole numbers; correct it")
        experiment, user, activity, first, last = map(int, row)
        if not 1 <= activity <= _ACTIVITIES:
            raise DataError(
                f"{path}, row {line}: the activity is {activity}, and activities are "
                f"1..{_ACTIVITIES}; correct it"
            )
        if not 0 <= first <= last:
            raise DataError(
                f"{path}, row {line}: the stretch is from {first} to {last}; correct it"
            )
        stretches.setdefault((experiment, user), []).append((line, activity, first, last))
    return stretches


def _read_numbers(path: Path, columns: int) -> np.ndarray:
    """Read a table of finite numbers, separated by blanks; the error names the first bad row."""
    locate.check_file(path)
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); copy it again") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{path} is empty; copy it again")
    try:
        numbers = np.loadtxt(lines, ndmin=2, comments=None)
        whole = numbers.shape == (len(lines), columns) and bool(np.isfinite(numbers).all())
    except ValueError:
        whole = False
    if not whole:
        row = next(n for n, line in enumerate(lines) if not _is_row(line, columns))
        raise DataError(
            f"{path}, row {row + 1}: {lines[row][:60]!r} is not {columns} numbers; copy it again"
        )
    return numbers


def _is_row(line: str, columns: int) -> bool:
    try:
        values = [float(word) for word in line.split()]
    except ValueError:
        return False
    return len(values) == columns and bool(np.isfinite(values).all())
