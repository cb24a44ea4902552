"""MNIST and Fashion-MNIST: IDX files, gzipped or not, and broken ones named."""

import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import DataError
from coterie.data.datasets import load
from coterie.data.sources import fashion_mnist

RANDOM = np.random.default_rng(0)
PARTS = {
    part: (RANDOM.integers(256, size=(count, 28, 28)).astype(np.uint8), np.arange(count) % 10)
    for part, count in (("train", 40), ("t10k", 20))
}


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">{1 + array.ndim}I", 0x800 | array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write(folder: Path, ending: str = ".gz", dash: str = "-") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    squeeze = gzip.compress if ending else bytes
    for part, (x, y) in PARTS.items():
        (folder / f"{part}-images{dash}idx3-ubyte{ending}").write_bytes(squeeze(idx(x)))
        (folder / f"{part}-labels{dash}idx1-ubyte{ending}").write_bytes(squeeze(idx(y)))


def install_debian(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    source = replace(fashion_mnist._SOURCE, debian=folder)
    monkeypatch.setattr(fashion_mnist, "files", source.files)
    monkeypatch.setattr(fashion_mnist, "read", source.read)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize(("ending", "dash"), [(".gz", "-"), ("", "-"), ("", ".")])
def test_both_sets(name: str, ending: str, dash: str, tmp_path: Path) -> None:
    write(tmp_path / "raw", ending, dash)
    dataset = load(name, str(tmp_path / "raw"), tmp_path / "cache")
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == 10
    assert np.array_equal(dataset.x_train[:, 0], PARTS["train"][0])
    assert np.array_equal(dataset.y_train, PARTS["train"][1])
    assert np.array_equal(dataset.x_test[:, 0], PARTS["t10k"][0])
    constants = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
    assert (*dataset.mean, *dataset.std) == constants[name]


@pytest.mark.parametrize(
    ("name", "below"),
    [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")],
)
def test_folders_of_a_root(
    name: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / below)
    given = load(name, str(tmp_path), tmp_path / "cache")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert load(name, cache=tmp_path / "cache").path == given.path


def test_a_default_root_does_not_confuse_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    install_debian(monkeypatch, tmp_path / "debian")
    for name in ("mnist", "fashion-mnist"):
        with pytest.raises(DataError, match=f"{name}.* was not found"):
            load(name, cache=tmp_path / "cache")
    write(tmp_path / "debian")
    assert load("fashion-mnist", cache=tmp_path / "cache").classes == 10


def test_missing_data_names_every_place_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "no"))
    install_debian(monkeypatch, tmp_path / "debian")
    with pytest.raises(DataError) as caught:
        load("fashion-mnist", cache=tmp_path)
    said = str(caught.value)
    for part in ("no/fashion-mnist", "no/FashionMNIST/raw", "debian"):
        assert str(tmp_path / part) in said
    for remedy in ("coterie download fashion-mnist --root DIR", "dataset-fashion-mnist"):
        assert remedy in said
    assert "train-images-idx3-ubyte.gz" in said
    assert "\n" not in said


def plain(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def damage(file: Path) -> None:
        file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()))))

    return damage


def number(place: int, value: int) -> Callable[[Path], object]:
    def change(data: bytes) -> bytes:
        return data[: 4 * place] + struct.pack(">I", value) + data[4 * place + 4 :]

    return plain(change)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (plain(lambda data: data[:-1]), "should have 31360 bytes of data and has 31359"),
    "longer": (plain(lambda data: data + b"x"), "should have 31360 bytes of data and has more"),
    "head": (plain(lambda data: data[:10]), "ends after 10 bytes"),
    "empty": (lambda file: file.write_bytes(b""), "ends after 0 bytes"),
    "labels for images": (number(0, 0x801), "starts with the number 0x00000801"),
    "floats": (number(0, 0xD03), "instead of 0x00000803"),
    "giant": (number(1, 2**32 - 1), "should have"),
    "cut gzip": (lambda file: file.write_bytes(file.read_bytes()[:-50]), "truncated or damaged"),
    "altered gzip": (
        lambda file: file.write_bytes(file.read_bytes()[:-8] + b"12345678"),
        "truncated or damaged",
    ),
    "missing": (Path.unlink, "is missing"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named(case: str, tmp_path: Path) -> None:
    damage, message = BROKEN[case]
    write(tmp_path)
    damage(tmp_path / "train-images-idx3-ubyte.gz")
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", str(tmp_path), tmp_path / "cache")
    assert str(tmp_path / "train-images-idx3-ubyte.gz") in str(caught.value)
