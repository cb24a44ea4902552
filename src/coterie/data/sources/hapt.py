"""`hapt`: accelerometer and gyroscope of the phones of thirty persons, six activities (UCI HAPT).

The last fifth of the windows of every person and activity is for testing. Windows overlap by half:
if the window before that block shares points with it, it is left out, so that no point of a test
window is trained on.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.data.datasets import AnyKind, Groups, Raw
from coterie.data.formats import hapt, locate
from coterie.data.formats.hapt import Windows

# Of the training windows, per channel, in g and rad/s. Every person could send the sums of its own.
_MEAN = (0.8044, 0.0295, 0.0983, 0.0047, -0.0020, -0.0074)
_STD = (0.4143, 0.3967, 0.3497, 0.4073, 0.3830, 0.2538)
_ARCHIVE = "HAPT Data Set"  # the folder of the published archive
_TEST_SHARE = 5  # one in so many windows is for testing

_Reader = Callable[[Path], Mapping[str, Windows]]
_Lister = Callable[[Path], list[Path]]


def files(root: str) -> tuple[Path, ...]:
    """List the .npz files of the persons, or the published files."""
    folder, list_files, _ = _find(root)
    return tuple(list_files(folder))


def read(root: str, kind: AnyKind = "auto") -> Raw:
    """Read the windows of all persons, who are the groups, and split off test windows."""
    if kind not in ("auto", "signal"):
        raise ConfigError(f"data.kind = {kind!r}, and the data set 'hapt' has signals")
    folder, _, reader = _find(root)
    persons = reader(folder)
    rows = {name: split(x, y) for name, (x, y) in persons.items()}
    arrays, groups = [], []
    for part in (0, 1):
        for column in (0, 1):
            picked = [persons[name][column][rows[name][part]] for name in persons]
            arrays.append(np.concatenate(picked))
        lengths = [len(rows[name][part]) for name in persons]
        groups.append(np.repeat(np.arange(len(lengths)), lengths))
    x_train, y_train, x_test, y_test = arrays
    if not len(y_test):
        raise DataError(f"{folder} has {len(y_train)} windows, too few to test on any; add files")
    return Raw(
        x_train,
        y_train,
        x_test,
        y_test,
        classes=len(hapt.CLASSES),
        mean=_MEAN,
        std=_STD,
        groups=Groups(groups[0], groups[1], tuple(persons)),
        class_names=hapt.CLASSES,
    )


def split(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split the windows of a person into sorted training and test rows that share no point."""
    train, test = [], []
    for activity in np.unique(y):
        rows = np.flatnonzero(y == activity)
        held_out = max(round(len(rows) / _TEST_SHARE), 1) if len(rows) > 1 else 0
        first = len(rows) - held_out
        test.append(rows[first:])
        if held_out and _overlap(x[rows[first - 1]], x[rows[first]]):
            first -= 1
        train.append(rows[:first])
    empty = np.empty(0, np.int64)
    return np.sort(np.concatenate([empty, *train])), np.sort(np.concatenate([empty, *test]))


def _overlap(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether the second half of a window is the first half of the next."""
    return bool((before[:, hapt.STEP :] == after[:, : hapt.POINTS - hapt.STEP]).all())


def _find(root: str) -> tuple[Path, _Lister, _Reader]:
    """Find the folder in either form: the root, or `hapt`, `RawData` or the archive's in it."""
    start = locate.resolve_root(root)
    parents = (start, start / "hapt")
    folders = [*parents, *(folder / "RawData" for folder in parents), start / _ARCHIVE / "RawData"]
    for folder in folders:
        if (folder / hapt.LABELS).is_file():
            return folder, hapt.list_recordings, hapt.read_recordings
        if hapt.list_persons(folder):
            return folder, hapt.list_persons, hapt.read_persons
    raise DataError(
        f"the data set 'hapt' was not found; looked at {', '.join(map(str, folders))}; put "
        f"person_NN.npz or the published folder RawData with {hapt.LABELS} there, then set "
        "data.root=DIR"
    )
