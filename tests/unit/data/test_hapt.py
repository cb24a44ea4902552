"""HAPT: both layouts give the same windows, test windows share no point, bad files are named."""

from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import ConfigError, DataError
from coterie.data.datasets import load
from coterie.data.formats import hapt as files
from coterie.data.sources import hapt

# (experiment, user): the stretches of activities, with a transition (7) and unnamed points between
STRETCHES = {
    (1, 1): [(5, 10, 1034), (7, 1035, 1200), (4, 1201, 1900)],
    (2, 1): [(5, 0, 900), (1, 1000, 1899)],
    (3, 7): [(6, 100, 1000), (3, 1100, 1999)],
}
POINTS = 2000


def record(seed: int) -> np.ndarray:
    """Make the signal of an experiment, (time, 6), with numbers that text keeps exactly."""
    return np.random.default_rng(seed).integers(-4000, 4000, (POINTS, 6)) / 1024


def publish(folder: Path) -> Path:
    """Write the experiments as they are published."""
    folder.mkdir(parents=True)
    rows = []
    for (experiment, user), stretches in STRETCHES.items():
        signal = record(experiment)
        for kind, part in (("acc", signal[:, :3]), ("gyro", signal[:, 3:])):
            name = f"{kind}_exp{experiment:02d}_user{user:02d}.txt"
            np.savetxt(folder / name, part, fmt="%.16e")
        rows += [(experiment, user, *stretch) for stretch in stretches]
    np.savetxt(folder / "labels.txt", rows, fmt="%d")
    return folder


def save_persons(folder: Path) -> Path:
    """Write a file per person, cutting windows by a plain loop."""
    folder.mkdir(parents=True)
    for user in {user for _, user in STRETCHES}:
        x, y = [], []
        for (experiment, owner), stretches in STRETCHES.items():
            for start in range(0, POINTS - 127, 64) if owner == user else ():
                for activity, first, last in stretches:
                    if activity <= 6 and first <= start and start + 127 <= last:
                        x.append(record(experiment)[start : start + 128].T)
                        y.append(activity - 1)
        np.savez(folder / f"person_{user:02d}.npz", x=np.asarray(x, np.float32), y=y)
    return folder


def test_both_layouts_give_the_same_arrays(tmp_path: Path) -> None:
    published, saved = publish(tmp_path / "RawData"), save_persons(tmp_path / "npz")
    ours, theirs = load("hapt", str(published)), load("hapt", str(saved))
    assert ours.fingerprint == theirs.fingerprint
    assert ours.shape == (6, 128)
    assert ours.kind == "signal"
    assert ours.class_names == files.CLASSES
    assert ours.groups is not None
    assert ours.groups.names == ("person_01", "person_07")


def test_the_root_may_be_a_folder_above_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "hapt" / "RawData")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert hapt.files("") == hapt.files(str(tmp_path / "hapt"))
    assert len(hapt.files("")) == 1 + 2 * len(STRETCHES)
    publish(tmp_path / "unpacked" / "HAPT Data Set" / "RawData")
    assert len(hapt.files(str(tmp_path / "unpacked"))) == len(hapt.files(""))


def test_no_point_of_a_test_window_is_trained_on(tmp_path: Path) -> None:
    data = load("hapt", str(publish(tmp_path / "RawData")))
    # every point of the made signals is unique with near certainty: six numbers of 8000 values
    points = [{tuple(p) for w in x for p in w.T.tolist()} for x in (data.x_train, data.x_test)]
    assert points[0].isdisjoint(points[1])


def test_the_last_fifth_of_every_activity_of_a_person_is_for_testing() -> None:
    x = np.random.default_rng(0).normal(size=(20, 6, 128)).astype(np.float32)
    x[16, :, :64] = x[15, :, 64:]  # of activity 2: shares points with the first test window
    y = np.repeat([0, 2], 10)
    train, test = hapt.split(x, y)
    assert test.tolist() == [8, 9, 18, 19]
    assert train.tolist() == [*range(8), *range(10, 18)]
    x[18, :, :64] = x[17, :, 64:]
    assert hapt.split(x, y)[0].tolist() == [*range(8), *range(10, 17)]


def test_an_activity_with_one_window_is_trained_on() -> None:
    train, test = hapt.split(np.ones((1, 6, 128), np.float32), np.array([3]))
    assert (train.tolist(), test.tolist()) == ([0], [])


@pytest.mark.parametrize(
    ("name", "row", "text", "message"),
    [
        ("acc_exp01_user01.txt", 3, "0.1 0.2 nan", "acc_exp01_user01.txt, row 4: '0.1 0.2 nan'"),
        ("gyro_exp02_user01.txt", 0, "0.1 0.2", "gyro_exp02_user01.txt, row 1: '0.1 0.2' is not 3"),
        ("labels.txt", 1, "1 1 13 5 9", "labels.txt, row 2: the activity is 13"),
        ("labels.txt", 1, "1 1 5 9 5", "labels.txt, row 2: the stretch is from 9 to 5"),
        ("labels.txt", 1, "1 1 5 9 2000", "labels.txt, row 2: the stretch ends at point 2000"),
        ("labels.txt", 1, "1 1 5 9.5 20", r"labels.txt, row 2: .* are not all whole numbers"),
        ("labels.txt", 0, "9 1 5 9 20", "labels.txt, row 1: there is no file acc_exp09_user01.txt"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, name: str, row: int, text: str, message: str) -> None:
    path = publish(tmp_path / "RawData") / name
    lines = path.read_text().splitlines()
    lines[row] = text
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=message) as caught:
        hapt.read(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_files_of_an_experiment_that_do_not_fit_are_named(tmp_path: Path) -> None:
    gyro = publish(tmp_path / "RawData") / "gyro_exp01_user01.txt"
    gyro.write_text("\n".join(gyro.read_text().splitlines()[:-1]))
    with pytest.raises(DataError, match=r"gyro_exp01_user01.txt has 1999 rows and acc_.* 2000"):
        hapt.read(str(tmp_path))
    gyro.write_text("")
    with pytest.raises(DataError, match=r"gyro_exp01_user01.txt is empty"):
        hapt.read(str(tmp_path))
    gyro.unlink()
    with pytest.raises(DataError, match=r"gyro_exp01_user01.txt is missing"):
        hapt.read(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.array([0, 6, 1, 1])}, "person_01.npz, row 1: the activity is 6"),
        ({"y": np.array([0, 1])}, r"person_01.npz: y is int64 \(2,\) instead of 4 integers"),
        ({"x": np.zeros((4, 3, 128))}, r"person_01.npz: x is float64 \(4, 3, 128\) instead of"),
        ({"x": np.full((4, 6, 128), np.nan)}, "person_01.npz, row 0: .* not finite"),
    ],
)
def test_a_bad_file_of_a_person_is_named(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    arrays = {"x": np.ones((4, 6, 128), np.float32), "y": np.zeros(4, np.int64)} | change
    np.savez(tmp_path / "person_01.npz", **arrays)
    with pytest.raises(DataError, match=message):
        hapt.read(str(tmp_path))


def test_missing_files_and_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'hapt' was not found; looked at .*data.root=DIR"):
        hapt.read(str(tmp_path))
    with pytest.raises(ConfigError, match=r"data.kind = 'image', and the data set 'hapt' has sig"):
        hapt.read(str(tmp_path), "image")
    (tmp_path / "labels.txt").write_text("1 1 5 9 20\n")
    with pytest.raises(DataError, match=r"has no file acc_expNN_userNN.txt"):
        hapt.read(str(tmp_path))
    (tmp_path / "labels.txt").unlink()
    np.savez(tmp_path / "person_01.npz", x=np.ones((1, 6, 128)), y=[0])
    with pytest.raises(DataError, match=r"has 1 windows, too few to test on any"):
        hapt.read(str(tmp_path))
