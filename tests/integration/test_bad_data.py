# ruff: noqa: F811
"""Bad data: one line that names the file or the row, and exit code 3."""

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_bad_input import Refused, config, refused  # noqa: F401


def vectors(**changes: Any) -> dict[str, Any]:
    """Thirty training and twelve test vectors of three classes, with some arrays replaced."""
    good = {
        "x_train": np.arange(180, dtype=np.float32).reshape(30, 6),
        "y_train": np.arange(30) % 3,
        "x_test": np.ones((12, 6), np.float32),
        "y_test": np.arange(12) % 3,
    }
    return {**good, **changes}


def images(*shape: int, value: int = 0) -> dict[str, Any]:
    return vectors(x_train=np.full((30, *shape), value), x_test=np.full((12, *shape), value))


def with_value(name: str, row: int, value: Any, dtype: Any = None) -> dict[str, Any]:
    array = np.array(vectors()[name], dtype)
    array[row] = value
    return vectors(**{name: array})


def header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    """The head of an .npy file, without its array."""
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in vectors().items() if key != name}


DATA: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no x_train": (without("x_train"), ("no array 'x'", "it has: y_train")),
    "unknown": (vectors(labels=np.arange(30)), ("'labels' is none of x, x_test",)),
    "nothing": ({}, ("no array 'x'", "nothing")),
    "rows": (vectors(y_train=np.arange(29) % 3), ("y_train has 29 entries for 30 samples",)),
    "test rows": (vectors(y_test=np.arange(13) % 3), ("y_test has 13 entries for 12",)),
    "empty": (vectors(x_train=np.zeros((0, 6)), y_train=np.zeros(0, int)), ("x_train is empty",)),
    "no test": (vectors(x_test=np.zeros((0, 6)), y_test=np.zeros(0, int)), ("x_test is empty",)),
    "no feature": (vectors(x_train=np.zeros((30, 0))), ("x_train is empty",)),
    "amounts": (vectors(y_train=np.arange(30) / 4), ("y_train, row 1: the label is 0.25",)),
    "text labels": (vectors(y_test=np.array(list("abc") * 4)), ("y_test, row 0", "'a'")),
    "column": (vectors(y_train=(np.arange(30) % 3)[:, None]), ("y_train", "(30, 1)", "ravel")),
    "one-hot": (vectors(y_train=np.eye(3, dtype=int)[np.arange(30) % 3]), ("y_train", "argmax")),
    "negative": (with_value("y_train", 4, -2), ("y_train, row 4: the label is -2", "write -1")),
    "unseen": (with_value("y_test", 5, 3), ("y_test, row 5: the label is 3", "0, 1, 2")),
    "unsigned": (with_value("y_train", 9, 2**64 - 1, np.uint64), ("18446744073709551615",)),
    "NaN": (with_value("x_train", 7, np.nan), ("x_train, row 7: it holds nan",)),
    "infinite": (with_value("x_test", 3, -np.inf), ("x_test, row 3: it holds -inf",)),
    "too large": (
        with_value("x_train", 2, 1e300, np.float64),
        ("x_train, row 2: it", "1e+300"),
    ),
    "complex": (vectors(x_train=np.ones((30, 6), complex)), ("x_train", "complex128")),
    "text": (vectors(x_test=np.full((12, 6), "a")), ("x_test, row 0", "the text 'a'")),
    "bool": (vectors(x_train=np.ones((30, 6), bool)), ("x_train", "bool")),
    "times": (vectors(x_train=np.zeros((30, 6), "M8[s]")), ("x_train", "datetime64")),
    "objects": (vectors(x_train=np.full((30, 6), None)), ("cannot be read", "plain arrays")),
    "features": (vectors(x_test=np.zeros((12, 5), np.float32)), ("x_test[0]", "(5,)", "(6,)")),
    "axes": (vectors(x_test=np.zeros((12, 1, 6), np.float32)), ("x_test", "(12, 1, 6)")),
    "one axis": (vectors(x_train=np.zeros(30), x_test=np.zeros(12)), ("x_train", "(30,)")),
    "no axis": (vectors(x_train=np.float32(3), x_test=np.float32(3)), ("x_train", "()")),
    "five axes": (images(1, 2, 3, 4), ("x_train", "(30, 1, 2, 3, 4)")),
    "scalar label": (vectors(y_train=np.int64(3)), ("y_train", "()")),
    "channels": (images(5, 8, 8), ("x_train has 5 channels",)),
    "both layouts": (images(3, 8, 3), ("x_train", "(30, 3, 8, 3)", "channels")),
    "pixels": (images(1, 8, 8, value=256), ("x_train, row 0: it holds 256", "0..255")),
    "other size": (
        {**images(1, 8, 8), "x_test": np.zeros((12, 1, 8, 9), np.uint8)},
        ("x_test[0]", "(1, 8, 9)"),
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_bad_arrays(case: str, config: str, tmp_path: Path, refused: Refused) -> None:
    arrays, words = DATA[case]
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    refused("run", config, f"data.root={path}", code=3, words=(str(path), *words))


def test_bad_files_of_data(config: str, tmp_path: Path, refused: Refused) -> None:
    good = tmp_path / "good.npz"
    np.savez(good, **vectors())
    whole, files = good.read_bytes(), tmp_path / "files"
    files.mkdir()
    single = files / "single.npy"
    np.save(single, np.zeros(3))
    contents = {
        "empty.npz": b"",
        "text.npz": b"label,pixel\n1,2\n",
        "half.npz": whole[: len(whole) // 2],
        "altered.npz": whole[:300] + b"\xff" * 40 + whole[340:],
        "zip.npz": b"PK\x05\x06" + bytes(18),
    }
    for name, content in contents.items():
        (files / name).write_bytes(content)
    for path in sorted(files.iterdir()):
        refused("run", config, f"data.root={path}", code=3, words=(str(path), "np.savez"))
    for missing in (str(tmp_path / "none.npz"), str(tmp_path), "~nobody-here/x.npz", "a\0b"):
        what = "is not a file" if missing == str(tmp_path) else "does not exist"
        shown = os.path.basename(missing).replace("\0", r"\x00")  # noqa: PTH119
        words = (shown, what, "data.root=FILE.npz")
        refused("run", config, f"data.root={missing}", code=3, words=words)
    refused("run", config, "data.root=", code=3, words=("data.root is empty",))


def write_images(root: Path) -> None:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (8, 8), 40 * number).save(root / name / f"{number}.png")


def add_bytes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content)


def add_link(name: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / name).symlink_to(target)


def add_image(name: str, mode: str = "L", side: int = 8) -> Callable[[Path], object]:
    return lambda root: Image.new(mode, (side, side)).save(root / name)


IMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "empty": (add_bytes("cat/x.png", b""), ("x.png cannot be decoded", "truncated")),
    "header only": (add_bytes("cat/x.png", b"\x89PNG\r\n\x1a\n"), ("x.png cannot be decoded",)),
    "text": (add_bytes("cat/x.jpg", b"not an image"), ("x.jpg cannot be decoded",)),
    "size": (add_image("cat/x.png", side=9), ("9 x 9 pixels", "data.resize=8")),
    "depth": (add_image("cat/x.png", mode="I;16"), ("mode I;16", "8 bits")),
    "bomb": (add_bytes("cat/x.ppm", b"P5 9000 9000 255\n"), ("9,000 x 9,000", "64,000,000")),
    "Pillow's bomb": (
        add_bytes("cat/x.ppm", b"P5 13000 13000 255\n"),
        ("13,000 x 13,000", "at most"),
    ),
    "larger bomb": (add_bytes("cat/x.ppm", b"P5 99999 99999 255\n"), ("9999800001", "64,000,000")),
    "loose": (add_image("x.png"), ("x.png lies beside folders of classes",)),
    "no image": (lambda root: (root / "fox").mkdir(), ("fox is the folder of a class",)),
    "dangling": (add_link("cat/x.png", "/nowhere/at/all"), ("x.png does not exist",)),
    "circular": (add_link("cat/x.png", "x.png"), ("x.png cannot be read",)),
    "device": (add_link("cat/x.png", "/dev/zero"), ("x.png is a device",)),
    "pipe": (lambda root: os.mkfifo(root / "cat" / "x.png"), ("x.png is a pipe",)),
    "control": (lambda root: (root / "cat").rename(root / "c\nt"), (r"'c\nt'", "rename it")),
    "no text": (
        lambda root: (root / "cat").rename(root / os.fsdecode(b"\xff")),
        (r"'\udcff'", "UTF-8"),
    ),
}


@pytest.mark.parametrize("case", IMAGES)
def test_bad_images(case: str, config: str, tmp_path: Path, refused: Refused) -> None:
    spoil, words = IMAGES[case]
    root = tmp_path / "images"
    write_images(root)
    spoil(root)
    more = ("partition.clients=2", "partition.min_samples=1")
    refused("run", config, "data.name=folder", f"data.root={root}", *more, code=3, words=words)


ROWS = "died,age,ward\n" + "".join(f"{n % 2},{n},{'ab'[n % 2]}\n" for n in range(20))
TABLES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("is empty", "header")),
    "header only": ("died,age,ward\n", ("no row below its header",)),
    "no header": ("1,2,3\n4,5,6\n", ("numbers only", "header")),
    "semicolons": ("died;age;ward\n1;2;a\n", ("semicolons",)),
    "no name": ("died,,ward\n1,2,a\n", ("column 2 has no name",)),
    "two names": ("died,age,age\n1,2,a\n", ("two columns 'age'",)),
    "short row": (f"{ROWS}1,2\n", (":22 has 2 cells, and the header 3",)),
    "long row": (f"{ROWS}1,2,a,4\n", (":22 has 4 cells",)),
    "quotes": (f'{ROWS}1,"2,a\n', (":22 has 2 cells",)),
    "infinite": (f"{ROWS}1,inf,a\n", ("row 22, column 'age'", "no finite number")),
    "giant": (f"{ROWS}1,1e99,a\n", ("row 22, column 'age'", "no finite number")),
    "amount": (f"{ROWS}0.5,2,a\n", ("row 22, column 'died': the label is 0.5",)),
    "below": (f"{ROWS}-5,2,a\n", ("row 22, column 'died': the label is -5",)),
    "mixture": (f"{ROWS}1,old,a\n", ("row 22, column 'age': 'old' is not a number",)),
    "long text": (f"{ROWS}1,{'z' * 100_000},a\n", ("row 22, column 'age': 'zzz", "zzz' is not")),
    "escape": (f"{ROWS}1,\x1b[31m,a\n", (r"'\x1b[31m' is not a number",)),
    "Latin": (f"{ROWS}1,2,é\n".encode("latin-1"), ("cannot be read", "UTF-8")),
    "no site": (f"{ROWS}1,2,\n", ("row 22, column 'ward': the site is missing",)),
    "no label": (ROWS.replace("died", "dead"), ("data.label='died' is no column",)),
    "no value": ("died,age,ward\n" + "0,,a\n1,,b\n" * 9, ("column 'age' has no value at all",)),
}


@pytest.mark.parametrize("case", TABLES)
def test_bad_tables(case: str, config: str, tmp_path: Path, refused: Refused) -> None:
    text, words = TABLES[case]
    path = tmp_path / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    keys = ("data.name=table", f"data.root={path}", "data.label=died", "data.site=ward")
    refused("run", config, *keys, "partition.kind=by-group", code=3, words=words)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (b"junk", ("'x' is no array",)),
        (b"", ("cannot be read",)),
        (header((10**30, 6)), ("cannot be read",)),
        (header((10**13, 6)), ("cannot be read",)),
        (header((-5, 6)), ("cannot be read",)),
        (header((5, 6)), ("cannot be read",)),
        (header((5, 6), "|O"), ("cannot be read",)),
    ],
    ids=["junk", "nothing", "overflow", "memory", "negative", "short", "pickle"],
)
def test_bad_members_of_an_archive(
    member: bytes, words: tuple[str, ...], config: str, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "bad.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member)
    refused("run", config, f"data.root={path}", code=3, words=(str(path), *words))


@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 3, 8), (1, 8, 2)])
def test_images_too_small_for_the_backbone(
    shape: tuple[int, ...], config: str, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "small.npz"
    np.savez(path, **images(*shape))
    words = ("net.backbone = 'simple-cnn'", str(shape), "'mlp'")
    refused(
        *("run", config, f"data.root={path}", "net.backbone=simple-cnn"),
        *("partition.min_samples=1", "partition.kind=iid"),
        words=words,
    )


def test_too_few_samples_for_the_clients(config: str, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "few.npz"
    np.savez(path, **{name: array[:3] for name, array in vectors().items()})
    refused("run", config, f"data.root={path}", words=("clients=6", "3 training samples"))
