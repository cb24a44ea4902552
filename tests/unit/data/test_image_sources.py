"""Folders of images, sites and CSV listings: layouts, groups, resizing, and what is refused."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import ConfigError, DataError
from coterie.data import datasets
from coterie.data.datasets import Groups, Raw, load, open_cached, store

RANDOM = np.random.default_rng(0)


def paint(path: Path, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> np.ndarray:
    """Write a random image; its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = RANDOM.integers(256, size=shape).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def classes(root: Path, counts: dict[str, int], mode: str = "RGB") -> dict[Path, np.ndarray]:
    return {
        root / name / f"{number:02}.png": paint(root / name / f"{number:02}.png", mode=mode)
        for name, count in counts.items()
        for number in range(count)
    }


def test_train_and_test_folders(tmp_path: Path) -> None:
    train = classes(tmp_path / "own" / "train", {"10": 2, "9": 3})
    test = classes(tmp_path / "own" / "test", {"9": 1, "10": 1})
    (tmp_path / "own" / "train" / "9" / "notes.txt").touch()
    (tmp_path / "own" / "train" / "9" / ".hidden.png").touch()
    dataset = load("folder", str(tmp_path / "own"), tmp_path / "cache")
    assert dataset.shape == (3, 6, 8)
    assert dataset.y_train.tolist() == [0, 0, 0, 1, 1]
    assert dataset.y_test.tolist() == [0, 1]
    nine = train[tmp_path / "own" / "train" / "9" / "02.png"]
    assert np.array_equal(dataset.x_train[2].transpose(1, 2, 0), nine)
    ten = test[tmp_path / "own" / "test" / "10" / "00.png"]
    assert np.array_equal(dataset.x_test[1].transpose(1, 2, 0), ten)
    assert (dataset.classes, dataset.mean, dataset.groups) == (2, (0.5,) * 3, None)
    assert not dataset.x_train.flags.writeable
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.name[0] == "."]


@pytest.mark.parametrize("below", ["", "train"])
def test_a_fifth_is_held_out(below: str, tmp_path: Path) -> None:
    classes(tmp_path / "own" / below, {"cat": 10, "dog": 5, "owl": 1}, mode="L")
    dataset = load("folder", str(tmp_path / "own"), tmp_path / "cache")
    assert dataset.shape == (1, 6, 8)
    assert np.bincount(dataset.y_train).tolist() == [8, 4, 1]
    assert np.bincount(dataset.y_test).tolist() == [2, 1]
    again = load("folder", str(tmp_path / "own"), tmp_path / "other")
    assert again.fingerprint == dataset.fingerprint


def test_the_second_load_does_not_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.data.sources import folder

    classes(tmp_path / "own", {"cat": 5, "dog": 5})
    first = load("folder", str(tmp_path / "own"), tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(folder, "decode", "never called")
        assert load("folder", str(tmp_path / "own"), tmp_path / "cache").path == first.path
    resized = load("folder", str(tmp_path / "own"), tmp_path / "cache", resize=4)
    assert resized.shape == (3, 4, 4)
    paint(tmp_path / "own" / "cat" / "new.png")
    assert len(load("folder", str(tmp_path / "own"), tmp_path / "cache").x_train) == 9


def test_where_files_cannot_have_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes(tmp_path / "own", {"cat": 5, "dog": 5})
    linked = load("folder", str(tmp_path / "own"), tmp_path / "one")
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError(1, "no")))
    copied = load("folder", str(tmp_path / "own"), tmp_path / "two")
    assert copied.fingerprint == linked.fingerprint
    assert copied.x_train.tobytes() == linked.x_train.tobytes()


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "own" / "tiny-imagenet-200"
    for name in ("n02", "n01"):
        for number in range(3):
            paint(root / "train" / name / "images" / f"{name}_{number}.JPEG")
        (root / "train" / name / f"{name}_boxes.txt").touch()
    one = paint(root / "val" / "images" / "val_0.png")
    paint(root / "val" / "images" / "val_1.png")
    paint(root / "test" / "images" / "test_0.JPEG")
    (root / "wnids.txt").write_text("n02\nn01\n")
    notes = root / "val" / "val_annotations.txt"
    notes.write_text("val_0.png\tn02\t0\t0\t1\t1\nval_1.png\tn01\t0\t0\t1\t1\n")
    for path in (root, root.parent):
        dataset = load("folder", str(path), tmp_path / "cache")
        assert dataset.y_train.tolist() == [0, 0, 0, 1, 1, 1]
        assert dataset.y_test.tolist() == [0, 1]
        assert np.array_equal(dataset.x_test[1].transpose(1, 2, 0), one)
    notes.write_text("val_0.png\tn02\t0\t0\t1\t1\nval_1.png\tn02\t0\t0\t1\t1\n")
    assert load("folder", str(root), tmp_path / "cache").y_test.tolist() == [1, 1]
    notes.write_text("val_9.png\tn02\n")
    with pytest.raises(DataError, match=r"val_9\.png is missing"):
        load("folder", str(root), tmp_path / "cache")
    notes.write_text("val_0.png\tn07\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt:1 names no class"):
        load("folder", str(root), tmp_path / "cache")


def test_kinds_of_images_become_colour(tmp_path: Path) -> None:
    classes(tmp_path / "own", {"cat": 5, "dog": 5}, mode="L")
    folder = tmp_path / "own" / "cat"
    picture = Image.fromarray(RANDOM.integers(256, size=(6, 8, 3)).astype(np.uint8))
    picture.save(folder / "a.bmp")
    picture.save(folder / "b.PPM")
    picture.save(folder / "c.webp", lossless=True)
    picture.convert("RGBA").save(folder / "d.png")
    picture.convert("P").save(folder / "e.png", transparency=bytes([0, 3, 255]))
    picture.convert("CMYK").save(folder / "f.jpg")
    dataset = load("folder", str(tmp_path / "own"), tmp_path / "cache")
    assert dataset.shape == (3, 6, 8)
    grey = dataset.x_train[dataset.y_train == 1][0]
    assert np.array_equal(grey[0], grey[1])


def test_resizing_cuts_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    tall = wide.transpose(1, 0, 2)
    for number, pixels in enumerate([wide, tall] * 3):
        path = tmp_path / "own" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    for side in (10, 5, 20):
        dataset = load("folder", str(tmp_path / "own"), tmp_path / "cache", resize=side)
        assert dataset.shape == (3, side, side)
        inner = dataset.x_train[:, :, side // 5 : -side // 5, side // 5 : -side // 5]
        assert (inner == 200).all()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def sixteen_bits(path: Path) -> None:
    Image.fromarray(np.zeros((6, 8), np.uint16)).save(path)


def bomb(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", 60000, 60000)
    path.write_bytes(data)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut, "cannot be decoded"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be decoded"),
    "text": (lambda path: path.write_text("hello"), "cannot be decoded"),
    "another format": (lambda path: Image.new("L", (8, 6)).save(path, "GIF"), "cannot be decoded"),
    "sixteen bits": (sixteen_bits, "8 bits a channel"),
    "bomb": (bomb, "cannot be decoded"),
    "other size": (lambda path: paint(path, (7, 6)), r"7 x 6 pixels and .*data\.resize=6"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_image_is_named(case: str, tmp_path: Path) -> None:
    damage, message = BROKEN[case]
    classes(tmp_path / "own", {"cat": 5, "dog": 5})
    damage(tmp_path / "own" / "dog" / "03.png")
    with pytest.raises(DataError, match=message) as caught:
        load("folder", str(tmp_path / "own"), tmp_path / "cache")
    assert str(tmp_path / "own" / "dog" / "03.png") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    classes(tmp_path / "own", {"cat": 5, "dog": 5})
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"cache .*No space left .*COTERIE_CACHE"):
        load("folder", str(tmp_path / "own"), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_strange_folders_are_explained(tmp_path: Path) -> None:
    for name in ("folder", "sites", "csv"):
        with pytest.raises(DataError, match=rf"data\.root is empty, .*{name}"):
            load(name, "", tmp_path)
        with pytest.raises(DataError, match="nowhere does not exist"):
            load(name, str(tmp_path / "nowhere"), tmp_path)
    root = tmp_path / "own"
    root.mkdir()
    with pytest.raises(DataError, match=r"contains no image .* and no folder of a class"):
        load("folder", str(root), tmp_path)
    (root / "cat").mkdir()
    with pytest.raises(DataError, match="cat is the folder of a class and contains no image"):
        load("folder", str(root), tmp_path)
    classes(root, {"cat": 1, "dog": 1})
    with pytest.raises(DataError, match="x_test has no image"):
        load("folder", str(root), tmp_path)
    other = tmp_path / "other"
    classes(other / "train", {"cat": 2, "dog": 2})
    classes(other / "test", {"cow": 2})
    with pytest.raises(DataError, match=r"00\.png is of the class 'cow'"):
        load("folder", str(other), tmp_path)


# --- sites ---------------------------------------------------------------------------------------


def test_sites_of_folders(tmp_path: Path) -> None:
    root = tmp_path / "own"
    classes(root / "north" / "train", {"cat": 3, "dog": 2})
    classes(root / "north" / "test", {"owl": 1})
    classes(root / "east", {"owl": 5, "cat": 10})
    dataset = load("sites", str(root), tmp_path / "cache")
    assert dataset.groups is not None
    assert dataset.groups.names == ("east", "north")
    assert dataset.groups.train.tolist() == [0] * 12 + [1] * 5
    assert dataset.groups.test.tolist() == [0] * 3 + [1]
    assert dataset.y_train.tolist() == [0] * 8 + [2] * 4 + [0] * 3 + [1] * 2
    assert dataset.y_test.tolist() == [0, 0, 2, 2]
    classes(root / "north" / "test", {"cow": 1})
    with pytest.raises(DataError, match=r"north.*'cow'"):
        load("sites", str(root), tmp_path / "cache")


def site(path: Path, count: int, **more: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    x = RANDOM.integers(256, size=(count, 8, 8)).astype(np.uint8)
    np.savez(path, **{"x": x, "y": np.arange(count) % 3, **more})


def test_sites_of_arrays(tmp_path: Path) -> None:
    root = tmp_path / "own"
    for number in (10, 2):
        site(root / f"{number}.npz", 15)
    x = np.ones((4, 8, 8), np.uint8)
    np.savez(root / "1.npz", x_train=x, y_train=[0, 1, 2, 1], x_test=x[:1], y_test=[2])
    np.savez(root / "3.npz", x_train=x, y_train=[0, 0, 0, 0])
    dataset = load("sites", str(root), tmp_path / "cache")
    assert dataset.groups is not None
    assert dataset.groups.names == ("1", "2", "3", "10")
    assert np.bincount(dataset.groups.train).tolist() == [4, 12, 3, 12]
    assert np.bincount(dataset.groups.test).tolist() == [1, 3, 1, 3]
    assert (dataset.shape, dataset.classes, dataset.mean) == ((1, 8, 8), 3, (0.5,))
    again = open_cached(dataset.path).groups
    assert again is not None
    assert again.names == dataset.groups.names
    assert again.train.dtype == again.test.dtype == np.int64
    assert not again.train.flags.writeable
    with pytest.raises(ConfigError, match=r"data\.resize=4 is for image files"):
        load("sites", str(root), tmp_path / "cache", resize=4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.array([0, 1, -2])}, r"b\.npz: y, row 2: the label is -2"),
        ({"y": np.array([0.0, 1, 2.5])}, r"b\.npz: y, row 2: the label is 2\.5; .*regression"),
        ({"y": np.array(list("abc"))}, r"b\.npz has text for labels and .*a\.npz numbers"),
        ({"y": np.arange(2)}, r"b\.npz: y has 2 entries for 3 samples"),
        ({"x": np.zeros((3, 9, 8), np.uint8)}, r"b\.npz: samples are uint8 \(1, 9, 8\)"),
        ({"x": np.zeros((3, 1, 8, 8), np.float32)}, r"b\.npz: samples are float32"),
        ({"x": np.full((3, 1, 8, 8), np.nan)}, r"b\.npz: x, row 0: it holds nan"),
    ],
)
def test_the_bad_site_is_named(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    site(tmp_path / "own" / "a.npz", 9)
    site(tmp_path / "own" / "b.npz", 3, **arrays)
    with pytest.raises(DataError, match=message):
        load("sites", str(tmp_path / "own"), tmp_path / "cache")


def test_mixed_and_missing_sites(tmp_path: Path) -> None:
    root = tmp_path / "own"
    root.mkdir()
    with pytest.raises(DataError, match="contains no site"):
        load("sites", str(root), tmp_path)
    site(root / "a.npz", 9)
    (root / "b").mkdir()
    with pytest.raises(DataError, match=r"contains folders \(b\) and \.npz files \(a\.npz\)"):
        load("sites", str(root), tmp_path)
    (root / "b").rmdir()
    np.savez(root / "a.npz", y=np.zeros(3))
    with pytest.raises(DataError, match=r"a\.npz has no array 'x' \(it has: y\)"):
        load("sites", str(root), tmp_path)


# --- listings ------------------------------------------------------------------------------------


def listing(root: Path, train: str, test: str) -> None:
    root.mkdir(exist_ok=True)
    (root / "gld23k_user_dict_train.csv").write_text(train)
    (root / "gld23k_user_dict_test.csv").write_text(test)


TRAIN = "user_id,image_id,class\n7,aa,12\n11,ab,3\n7,ac,3\n"
TEST = "class,image_id\n12,ad\n3,ae.jpg\n"


def gallery(root: Path) -> None:
    for name in ("aa", "ab", "ac", "ad", "ae"):
        paint(root / "images" / name[0] / name[1] / f"{name}.jpg")
    (root / "images" / "a" / "a" / "aa.jpg").rename(root / "images" / "aa.JPG")


def test_a_listing(tmp_path: Path) -> None:
    root = tmp_path / "own"
    listing(root, "\ufeff" + TRAIN, TEST)
    gallery(root)
    dataset = load("csv", str(root), tmp_path / "cache")
    assert dataset.groups is not None
    assert dataset.groups.names == ("7", "11")
    assert dataset.groups.train.tolist() == [0, 1, 0]
    assert dataset.groups.test.tolist() == []
    assert dataset.y_train.tolist() == [1, 0, 0]
    assert dataset.y_test.tolist() == [1, 0]
    first = np.asarray(Image.open(root / "images" / "aa.JPG"))
    assert np.array_equal(dataset.x_train[0].transpose(1, 2, 0), first)
    paint(root / "images" / "a" / "b" / "ab.jpg", (12, 9))
    with pytest.raises(DataError, match=r"12 x 9 pixels .*data\.resize=6"):
        load("csv", str(root), tmp_path / "cache")
    assert load("csv", str(root), tmp_path / "cache", resize=6).shape == (3, 6, 6)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("user,image_id,class\n", TEST, r"train\.csv has no column 'user_id' \(it has: user,"),
        (TRAIN, "", r"test\.csv has no column 'image_id'"),
        (TRAIN, "image_id,class\n", r"test\.csv lists no sample"),
        (TRAIN + "8,zz,3\n", TEST, r"train\.csv:5: .*images has no image 'zz'"),
        (TRAIN + ",aa,3\n", TEST, r"train\.csv:5: user_id is empty"),
    ],
)
def test_a_bad_listing_is_named(train: str, test: str, message: str, tmp_path: Path) -> None:
    listing(tmp_path / "own", train, test)
    gallery(tmp_path / "own")
    with pytest.raises(DataError, match=message):
        load("csv", str(tmp_path / "own"), tmp_path / "cache")


def test_missing_and_double_listings(tmp_path: Path) -> None:
    root = tmp_path / "own"
    root.mkdir()
    with pytest.raises(DataError, match=r"has no file \*train\*\.csv"):
        load("csv", str(root), tmp_path)
    listing(root, TRAIN, TEST)
    with pytest.raises(DataError, match="images is not a folder"):
        load("csv", str(root), tmp_path)
    gallery(root)
    paint(root / "images" / "elsewhere" / "ab.png")
    with pytest.raises(DataError, match=r"have the same image_id"):
        load("csv", str(root), tmp_path)
    (root / "other_train.csv").write_text(TRAIN)
    with pytest.raises(DataError, match="both list train samples"):
        load("csv", str(root), tmp_path)


# --- groups --------------------------------------------------------------------------------------


def grouped(train: list[int], test: list[int]) -> Raw:
    x = np.zeros((4, 5), np.float32)
    y = np.array([0, 1, 0, 1])
    return Raw(x, y, x, y, groups=Groups(np.array(train), np.array(test, int), ("ann", "bob")))


def test_groups_are_checked_and_a_part_of_the_contents(tmp_path: Path) -> None:
    stored = [
        store("mine", grouped(train, test), tmp_path)
        for train, test in (([0, 0, 1, 1], []), ([0, 1, 1, 1], []), ([0, 0, 1, 1], [0, 1, 1, 1]))
    ]
    assert len({dataset.fingerprint for dataset in stored}) == 3
    assert stored[0].groups is not None
    assert stored[0].groups.test.size == 0
    assert datasets.open_cached(stored[2].path).groups is not None
    with pytest.raises(DataError, match=r"mine: group_train has shape \(3,\), .* 4 train samples"):
        store("mine", grouped([0, 0, 1], []), tmp_path)
    with pytest.raises(DataError, match=r"mine: group_test has shape \(1,\)"):
        store("mine", grouped([0, 0, 1, 1], [0]), tmp_path)
    with pytest.raises(DataError, match=r"mine: group_train\[2\] is 2, and there are 2 names"):
        store("mine", grouped([0, 0, 2, 1], []), tmp_path)
    (stored[2].path / "group_test.npy").unlink()
    with pytest.raises(DataError, match=r"group_test\.npy: the data cache is damaged"):
        open_cached(stored[2].path)
