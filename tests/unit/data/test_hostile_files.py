"""Files that are none, and images that would fill the memory: refused before they are opened."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import CoterieError, DataError
from coterie.data import datasets
from coterie.data.formats import cifar, hapt, idx, images, npz, tables
from coterie.data.inputs import read_numbers, read_path, read_table
from coterie.data.sources import csv, folder, sites, table
from coterie.data.table import TableOptions
from coterie.nets.weights import fingerprint

READERS: dict[str, Callable[[Path], object]] = {
    "x.png": lambda path: images.decode_files([path]),
    "x.npz": npz.read,
    "x.npy": npz.read_single,
    "x.csv": tables.read,
    "x.parquet": tables.read,
    "numbers.csv": read_numbers,
    "y.png": read_path,
    "y.csv": read_table,
    "data_batch_1": cifar._read_bytes,
    "x.txt": lambda path: hapt._read_numbers(path, 3),
    "x.safetensors": lambda path: fingerprint(str(path)),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CoterieError, match="is a pipe"):
        READERS[name](tmp_path / name)


def test_no_reader_reads_a_device_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "x.npy").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device"):
        npz.read_single(tmp_path / "x.npy")


def write_images(root: Path, names: tuple[str, ...] = ("a", "b")) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (8, 8), number * 30).save(root / name / f"{number}.png")


def test_a_pipe_among_images_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "classes")
    os.mkfifo(tmp_path / "classes" / "a" / "z.png")
    with pytest.raises(DataError, match=r"z\.png is a pipe; replace or remove it"):
        datasets.load("folder", str(tmp_path / "classes"), tmp_path / "cache")
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ("x.png", "y.png", "z.png"):
        os.mkfifo(flat / name)
    with pytest.raises(DataError, match=r"[xyz]\.png is a pipe"):
        folder.decode(str(flat), 0, tmp_path)


def test_a_pipe_among_sites_and_tables_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "north.npz")
    os.mkfifo(tmp_path / "north.csv")
    with pytest.raises(DataError, match=r"north\.npz is a pipe"):
        sites.decode(str(tmp_path), 0, tmp_path)
    with pytest.raises(DataError, match=r"north\.csv is a pipe"):
        table.read(str(tmp_path), TableOptions())
    with pytest.raises(DataError, match=r"north\.csv is a pipe; give one"):
        table.read(str(tmp_path / "north.csv"), TableOptions())
    listed = tmp_path / "listed"
    (listed / "images").mkdir(parents=True)
    os.mkfifo(listed / "train.csv")
    os.mkfifo(listed / "test.csv")
    with pytest.raises(DataError, match=r"train\.csv is a pipe"):
        csv.files(str(listed))


def test_a_pipe_instead_of_an_official_file_is_no_file(tmp_path: Path) -> None:
    for name in idx.NAMES:
        os.mkfifo(tmp_path / f"{name}-ubyte")
    with pytest.raises(DataError, match="not found"):
        datasets.load("mnist", str(tmp_path), tmp_path / "cache")


@pytest.mark.parametrize("name", ["folder", "sites", "csv", "table", "arrays", "mnist", "cifar10"])
@pytest.mark.parametrize("root", ["r" * 300, "/r" * 4096], ids=["name", "path"])
def test_a_path_that_is_too_long_is_refused(name: str, root: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is too long for a path"):
        datasets.load(name, root, tmp_path)


def write_bomb(path: Path, width: int, height: int) -> None:
    """A PNG file of some hundred bytes that promises so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(width + 1))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_an_image_that_would_fill_the_memory_is_not_decoded(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write_images(root)
    bomb = root / "a" / "z.png"
    write_bomb(bomb, 8000, 8001)
    said = r"z\.png is too large \(8,000 x 8,001 pixels\): an image has at most 64,000,000 pixels"
    with pytest.raises(DataError, match=said):
        datasets.load("folder", str(root), tmp_path / "cache", resize=8)
    with pytest.raises(DataError, match=said):
        read_path(bomb, resize=8)
    write_bomb(bomb, 13_000, 13_000)  # Pillow itself warns of it, which would be an error here
    with pytest.raises(DataError, match=r"\(13,000 x 13,000 pixels\): an image has at most 64"):
        read_path(bomb)
    write_bomb(bomb, 60_000, 60_000)  # more than Pillow itself opens
    with pytest.raises(DataError, match=r"3600000000 pixels.*at most 64,000,000 pixels"):
        read_path(bomb)


@pytest.mark.filterwarnings("error")
def test_the_largest_image_is_below_the_size_that_pillow_warns_of() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert images._PIXELS < Image.MAX_IMAGE_PIXELS


def test_a_name_is_no_essay(tmp_path: Path) -> None:
    x, y = np.zeros((4, 3), np.float32), np.array(["n" * 1001, "plain"] * 2)
    with pytest.raises(DataError, match=r"has a name of 1,001 characters, and it may have 1,000"):
        datasets.store("made", datasets.Raw(x, y, x, y), tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\x1b[31mb", "a\u2028b"])
def test_a_site_or_class_is_not_called_by_control_characters(name: str, tmp_path: Path) -> None:
    x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    of = np.array([0, 0, 1, 1])
    groups = datasets.Groups(of, of, (name, "plain"))
    with pytest.raises(DataError, match="has a name with control characters; rename it"):
        datasets.store("made", datasets.Raw(x, y, x, y, groups=groups), tmp_path)
    named = np.array([name, "plain"] * 2)
    with pytest.raises(DataError, match=r"the class .* has a name with control characters"):
        datasets.store("made", datasets.Raw(x, named, x, named), tmp_path)
