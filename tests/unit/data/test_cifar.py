"""CIFAR in the official layouts, unpacked and packed: one result, and broken files named."""

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_unpickle import python2

from coterie.core.errors import ConfigError, DataError
from coterie.data.datasets import Dataset, load
from coterie.data.sources import cifar10

PIXELS = 3072
RANDOM = np.random.default_rng(0)
BATCHES = {
    name: (
        RANDOM.integers(256, size=(20, PIXELS)).astype(np.uint8),
        RANDOM.permutation(np.arange(20) % 10),
    )
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
}
HUNDRED = {
    name: (
        RANDOM.integers(256, size=(200, PIXELS)).astype(np.uint8),
        RANDOM.permutation(np.arange(200) % 100),
    )
    for name in ("train", "test")
}


def binary10(folder: Path) -> None:
    for name, (x, y) in BATCHES.items():
        (folder / f"{name}.bin").write_bytes(np.c_[y.astype(np.uint8), x].tobytes())
    (folder / "batches.meta.txt").write_text("airplane\n")


def old10(folder: Path) -> None:
    for name, (x, y) in BATCHES.items():
        (folder / name).write_bytes(python2(x, labels=y.tolist()))


def new10(folder: Path) -> None:
    for name, (x, y) in BATCHES.items():
        (folder / name).write_bytes(pickle.dumps({"data": x, "labels": y.tolist()}, 2))


def binary100(folder: Path) -> None:
    for name, (x, y) in HUNDRED.items():
        labels = np.c_[(y // 5).astype(np.uint8), y.astype(np.uint8)]
        (folder / f"{name}.bin").write_bytes(np.c_[labels, x].tobytes())


def old100(folder: Path) -> None:
    for name, (x, y) in HUNDRED.items():
        coarse = (y // 5).tolist()
        data = python2(x, coarse_labels=coarse, fine_labels=y.tolist())
        (folder / name).write_bytes(data)


Writer = Callable[[Path], None]
LAYOUTS: list[tuple[str, str, str, Writer]] = [
    ("cifar10", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", binary10),
    ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", old10),
    ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", new10),
    ("cifar100", "cifar-100-binary", "cifar-100-binary.tar.gz", binary100),
    ("cifar100", "cifar-100-python", "cifar-100-python.tar.gz", old100),
]


def check(dataset: Dataset) -> None:
    if dataset.name == "cifar10":
        parts = list(BATCHES.values())
        x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
        x_test, y_test = parts[-1]
        assert dataset.classes == 10
        assert dataset.mean == pytest.approx((0.4914, 0.4824, 0.4467), abs=1e-4)
    else:
        (x, y), (x_test, y_test) = HUNDRED.values()
        assert dataset.classes == 100
        assert dataset.std == (0.2673, 0.2564, 0.2762)
    assert dataset.shape == (3, 32, 32)
    assert dataset.x_train.dtype == np.uint8
    assert np.array_equal(dataset.x_train.reshape(-1, PIXELS), x)
    assert np.array_equal(dataset.y_train, y)
    assert np.array_equal(dataset.x_test.reshape(-1, PIXELS), x_test)
    assert np.array_equal(dataset.y_test, y_test)


@pytest.mark.parametrize(("name", "folder", "archive", "write"), LAYOUTS)
def test_every_layout_and_place(
    name: str, folder: str, archive: str, write: Writer, tmp_path: Path
) -> None:
    inside = tmp_path / "unpacked" / folder
    inside.mkdir(parents=True)
    write(inside)
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / archive, "w:gz") as tar:
        tar.add(inside, folder)
    roots = (inside, inside.parent, packed / archive, packed)
    found = [load(name, str(root), tmp_path / "cache") for root in roots]
    check(found[0])
    assert {dataset.fingerprint for dataset in found} == {found[0].fingerprint}


def test_a_default_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    (tmp_path / "data" / "cifar-10-batches-bin").mkdir(parents=True)
    binary10(tmp_path / "data" / "cifar-10-batches-bin")
    check(load("cifar10", cache=tmp_path / "cache"))
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        load("cifar10", cache=tmp_path / "cache")


def test_missing_data_names_every_place_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar10", str(tmp_path / "no"), tmp_path)
    said = str(caught.value)
    assert "\n" not in said
    for part in ("no,", "no/cifar-10-batches-bin", "no/cifar-10-batches-py", "no/cifar-10-python"):
        assert str(tmp_path / part) in said
    assert "coterie download cifar10 --root DIR" in said
    assert "cifar-10-python.tar.gz" in said


def test_the_second_load_does_not_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary10(tmp_path)
    first = load("cifar10", str(tmp_path), tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(cifar10, "read", None)
        assert load("cifar10", str(tmp_path), tmp_path / "cache").path == first.path
    os.utime(tmp_path / "test_batch.bin", (1, 1))
    assert load("cifar10", str(tmp_path), tmp_path / "cache").path == first.path


def test_resizing_is_for_image_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.resize=8 is for image files.*'cifar10'"):
        load("cifar10", str(tmp_path), tmp_path, resize=8)
    with pytest.raises(ConfigError, match=r"data\.resize=-1"):
        load("folder", str(tmp_path), tmp_path, resize=-1)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: -(PIXELS + 1)])


def rewrite(**entries: object) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(pickle.dumps(entries, 2)) and None


BROKEN: list[tuple[Writer, str, Callable[[Path], None], str]] = [
    (binary10, "data_batch_2.bin", Path.unlink, r"is missing; unpack cifar-10-binary"),
    (binary10, "data_batch_2.bin", cut, "whole number of records of 3073"),
    (binary10, "data_batch_4.bin", shorten, "has 19 images and data_batch_1.bin 20"),
    (binary10, "test_batch.bin", lambda file: file.write_bytes(b"") and None, "has 0 bytes"),
    (old10, "data_batch_3", cut, "not an official CIFAR file"),
    (old10, "data_batch_3", rewrite(labels=[1]), "it has no 'data'"),
    (old10, "test_batch", rewrite(data=np.zeros((2, 5), np.uint8), labels=[1, 2]), r"\(2, 5\)"),
    (old10, "test_batch", rewrite(data=[1, 2], labels=[1, 2]), "'data' is list"),
    (old10, "test_batch", rewrite(data=np.zeros((2, PIXELS), np.uint8), labels=[1]), r"\(1,\)"),
    (old10, "test_batch", rewrite(data=np.zeros((1, PIXELS), np.uint8), labels=[[1], 2]), "offic"),
    (old10, "test_batch", rewrite(data=Path("x")), r"it asks for pathlib"),
    (old10, "test_batch", lambda file: file.write_bytes(pickle.dumps([1])) and None, "dictionary"),
]


@pytest.mark.parametrize(("write", "name", "damage", "message"), BROKEN)
def test_a_broken_file_is_named(
    write: Writer, name: str, damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", str(tmp_path), tmp_path / "cache")
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_out_of_range_is_named(tmp_path: Path) -> None:
    binary10(tmp_path)
    data = bytearray((tmp_path / "data_batch_2.bin").read_bytes())
    data[0] = 17
    (tmp_path / "data_batch_2.bin").write_bytes(data)
    with pytest.raises(DataError, match="y_train, row 20: the label is 17, but there are 10"):
        load("cifar10", str(tmp_path), tmp_path / "cache")


def pack(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            head = tarfile.TarInfo(name)
            head.size = len(data)
            tar.addfile(head, io.BytesIO(data))
    return path


def test_broken_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    names = [f"x/{name}.bin" for name in BATCHES]
    pack(path, {name: bytes(3073) * 50 + os.urandom(3073) for name in names})
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"binary\.tar\.gz cannot be unpacked"):
        load("cifar10", str(path), tmp_path / "cache")
    path.write_bytes(b"not an archive")
    with pytest.raises(DataError, match="cannot be unpacked"):
        load("cifar10", str(tmp_path), tmp_path / "cache")
    pack(path, {names[-1]: bytes(3073)})
    with pytest.raises(DataError, match=r"has no file data_batch_1\.bin"):
        load("cifar10", str(path), tmp_path / "cache")
    pack(path, {"readme": b""})
    with pytest.raises(DataError, match="contains none of the official files"):
        load("cifar10", str(path), tmp_path / "cache")
