"""Data sets: every bad input is one clear line, and the cache survives races and damage."""

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data_checks import images, with_value

from coterie.core import files
from coterie.core.errors import ConfigError, DataError
from coterie.data import cache_folder, checks, datasets
from coterie.data.datasets import Dataset, Raw, load, open_cached, store
from coterie.data.sources import arrays as arrays_source


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def contents(dataset: Dataset) -> list[bytes]:
    return [getattr(dataset, name).tobytes() for name in checks.ARRAYS]


def test_names_are_the_files_of_sources() -> None:
    assert {"arrays", "digits"} <= set(datasets.names())
    assert datasets.names() == tuple(sorted(datasets.names()))


def test_listing_imports_neither_torch_nor_sklearn() -> None:
    code = (
        "import sys; from coterie.core import registry; "
        "from coterie.data import datasets, partition; "
        "datasets.names(), registry.names('data/partitions'), partition.load_class('dirichlet'); "
        "sys.exit(bool({'torch', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_shows_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.name = 'digit' .*did you mean 'digits'"):
        load("digit", cache=tmp_path)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names a folder"):
        store(name, Raw(**images()), tmp_path)


def test_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.data.sources import digits

    dataset = load("digits", cache=tmp_path)
    assert dataset.shape == (1, 8, 8)
    assert (len(dataset.x_train), len(dataset.x_test), dataset.classes) == (1437, 360, 10)
    assert dataset.x_train.dtype == np.uint8
    assert dataset.x_train.max() == 240
    assert dataset.y_train.dtype == np.int64
    assert (dataset.mean, dataset.std) == ((0.5,), (0.5,))
    shares = np.bincount(dataset.y_test) / np.bincount(dataset.y_train)
    assert np.allclose(shares, 0.25, atol=0.02)
    monkeypatch.setattr(digits, "read", None)
    assert load("digits", cache=tmp_path).fingerprint == dataset.fingerprint


def test_default_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert datasets.default_cache() == Path("/own")
    monkeypatch.delenv("COTERIE_CACHE")
    assert datasets.default_cache() == Path("/shared/coterie")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert datasets.default_cache() == Path("/home/somebody/.cache/coterie")


# --- layouts of a file ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "becomes", "channels"),
    [
        ((12, 8, 6), (1, 8, 6), 1),
        ((12, 8, 6, 3), (3, 8, 6), 3),
        ((12, 4, 8, 6), (4, 8, 6), 4),
        ((12, 7), (7,), 0),
    ],
)
def test_layouts(
    shape: tuple[int, ...], becomes: tuple[int, ...], channels: int, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    root = save(tmp_path / "own.npz", **images(x_train=x, x_test=x[:6]))
    dataset = load("arrays", root, tmp_path / "cache")
    assert dataset.shape == becomes
    assert dataset.mean == dataset.std == (0.5,) * channels
    if shape[-1] == 3:
        assert np.array_equal(dataset.x_train.transpose(0, 2, 3, 1), x)
    else:
        assert np.array_equal(dataset.x_train.reshape(shape), x)


def test_float_images_are_not_normalised(tmp_path: Path) -> None:
    x = np.ones((12, 1, 8, 8))
    root = save(tmp_path / "own.npz", **images(x_train=x, x_test=x[:6]))
    assert load("arrays", root, tmp_path / "cache").mean == ()


# --- files that are refused -----------------------------------------------------------------------


def test_ambiguous_and_mixed_layouts_are_explained(tmp_path: Path) -> None:
    x = np.zeros((12, 3, 8, 3), np.uint8)
    root = save(tmp_path / "own.npz", **images(x_train=x, x_test=x[:6]))
    with pytest.raises(DataError, match=r"own\.npz: x_train has shape \(12, 3, 8, 3\), in which"):
        load("arrays", root, tmp_path / "cache")
    root = save(tmp_path / "own.npz", **images(x_train=np.zeros((12, 8, 8), np.uint8)))
    assert load("arrays", root, tmp_path / "cache").shape == (1, 8, 8)
    floats = np.zeros((12, 2, 30), np.float32)
    root = save(tmp_path / "own.npz", x=floats)
    with pytest.raises(DataError, match=r"own\.npz: x has float32 .*data\.kind=signal"):
        load("arrays", root, tmp_path / "cache")
    assert load("arrays", root, tmp_path / "cache", kind="signal").shape == (2, 30)
    assert load("arrays", root, tmp_path / "cache", kind="image").shape == (1, 2, 30)
    with pytest.raises(DataError, match="which is no table"):
        load("arrays", root, tmp_path / "cache", kind="table")
    with pytest.raises(ConfigError, match="the data set 'digits' has images"):
        load("digits", "", tmp_path / "cache", kind="signal")


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root is empty.*data\.root=FILE\.npz"):
        load("arrays", "", tmp_path)
    for root in (tmp_path / "no.npz", tmp_path, tmp_path / "a\0b", Path("~nobody-here/x.npz")):
        what = "is not a file" if root == tmp_path else "does not exist"
        with pytest.raises(DataError, match=rf"{what}; .*data\.root=FILE\.npz") as caught:
            load("arrays", str(root), tmp_path)
        assert str(root).replace("\0", r"\x00") in str(caught.value)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    root = save(tmp_path / "own.npz", y=np.arange(3))
    with pytest.raises(DataError, match=r"own\.npz has no array 'x' \(it has: y\)"):
        load("arrays", root, tmp_path / "cache")
    root = save(tmp_path / "own.npz", x=np.zeros((3, 2)), labels=np.arange(3))
    with pytest.raises(DataError, match=r"'labels' is none of x, x_test, x_train, y,"):
        load("arrays", root, tmp_path / "cache")


def test_bad_arrays_of_a_file_name_the_file(tmp_path: Path) -> None:
    root = save(tmp_path / "own.npz", **with_value("y_train", 4, -2))
    with pytest.raises(DataError, match=r"^.*own\.npz: y_train, row 4: the label is -2"):
        load("arrays", root, tmp_path / "cache")


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(images()))


def write_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **images(x_train=np.array([{}] * 12, dtype=object)))


def write_cut(path: Path) -> None:
    save(path, **images())
    path.write_bytes(path.read_bytes()[:-200])


def write_single(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, images()["x_train"])


@pytest.mark.parametrize(
    "write",
    [
        write_pickle,
        write_objects,
        write_cut,
        write_single,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("x,y\n1,2\n"),
    ],
)
def test_a_broken_file_is_named(write: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    write(path)
    with pytest.raises(DataError, match=r"own\.npz cannot be read as an \.npz file"):
        load("arrays", str(path), tmp_path / "cache")


@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_no_flipped_byte_raises_anything_else(writer: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    writer(path, **images())
    whole, dice = path.read_bytes(), random.Random(0)
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        path.write_bytes(flipped)
        try:
            raw = arrays_source.read(str(path))
        except DataError as error:
            assert "own.npz" in str(error)
        else:
            assert np.array_equal(raw.x_train, images()["x_train"])


# --- the cache ------------------------------------------------------------------------------------


def test_mapped_read_only_and_without_leftovers(tmp_path: Path) -> None:
    dataset = store("mine", Raw(**images(), mean=(0.5,), std=(0.25,)), tmp_path)
    assert dataset.path == tmp_path / f"mine-{dataset.fingerprint[:16]}"
    assert [entry.name for entry in tmp_path.iterdir()] == [dataset.path.name]
    assert not dataset.x_train.flags.writeable
    again = open_cached(dataset.path)
    assert (
        contents(again) == contents(dataset) == [images()[name].tobytes() for name in checks.ARRAYS]
    )
    assert (again.name, again.classes, again.mean, again.std) == ("mine", 3, (0.5,), (0.25,))
    assert again.fingerprint == dataset.fingerprint
    meta = json.loads((dataset.path / "meta.json").read_text())
    assert meta["arrays"]["x_test"] == {"shape": [6, 1, 8, 8], "dtype": "uint8"}


def test_the_fingerprint_follows_every_part_of_the_contents(tmp_path: Path) -> None:
    variants = [
        Raw(**images()),
        Raw(**images(), classes=4),
        Raw(**images(), mean=(0.5,), std=(0.5,)),
        *(Raw(**with_value(name, 1, 2)) for name in checks.ARRAYS),
    ]
    variants[4] = Raw(**with_value("y_train", 1, 0))
    variants[6] = Raw(**with_value("y_test", 1, 0))
    assert len({store("mine", raw, tmp_path).fingerprint for raw in variants}) == len(variants)
    one, other = store("one", variants[0], tmp_path), store("other", variants[0], tmp_path)
    assert one.fingerprint == other.fingerprint
    assert one.path != other.path


def test_the_second_load_does_not_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = save(tmp_path / "own.npz", **images())
    first = load("arrays", root, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(arrays_source, "read", None)
        assert contents(load("arrays", root, tmp_path / "cache")) == contents(first)
    save(tmp_path / "own.npz", **with_value("y_train", 1, 2))
    changed = load("arrays", root, tmp_path / "cache")
    assert changed.y_train[1] == 2
    assert changed.fingerprint != first.fingerprint


@pytest.mark.parametrize("note", [b"", b"\xff", b"elsewhere", b"a\0b"])
def test_a_damaged_pointer_costs_only_a_decode(note: bytes, tmp_path: Path) -> None:
    root = save(tmp_path / "own.npz", **images())
    first = load("arrays", root, tmp_path / "cache")
    (pointer,) = (tmp_path / "cache").glob("*.index")
    pointer.write_bytes(note)
    assert load("arrays", root, tmp_path / "cache").fingerprint == first.fingerprint
    assert pointer.read_text() == first.path.name


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def reshape(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 2)))


@pytest.mark.parametrize("file", ["x_train.npy", "y_test.npy", "meta.json"])
@pytest.mark.parametrize("damage", [Path.unlink, cut, reshape, lambda path: path.write_bytes(b"")])
def test_a_damaged_cache_is_named_and_rewritten(
    file: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    root = save(tmp_path / "own.npz", **images())
    good = load("arrays", root, tmp_path / "cache")
    before = [values.tobytes() for values in images().values()]
    damage(good.path / file)
    with pytest.raises(DataError, match=rf"{file}: the data cache is damaged"):
        open_cached(good.path)
    assert contents(load("arrays", root, tmp_path / "cache")) == before
    assert contents(open_cached(good.path)) == before
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.name[0] == "."]


@pytest.mark.parametrize("text", ["[]", "{}", '{"arrays": {}}', '{"arrays": 3}', "null"])
def test_a_strange_description_is_named(text: str, tmp_path: Path) -> None:
    path = store("mine", Raw(**images()), tmp_path).path
    (path / "meta.json").write_text(text)
    with pytest.raises(DataError, match=r"meta\.json: the data cache is damaged"):
        open_cached(path)


def test_a_file_in_the_place_of_the_folder_makes_way(tmp_path: Path) -> None:
    path = store("mine", Raw(**images()), tmp_path / "one").path
    other = tmp_path / "other" / path.name
    other.parent.mkdir()
    other.write_text("in the way")
    assert store("mine", Raw(**images()), tmp_path / "other").path == other


@pytest.mark.parametrize("damaged", [False, True])
def test_a_race_has_one_winner_and_no_loser(damaged: bool, tmp_path: Path) -> None:
    if damaged:
        (store("mine", Raw(**images()), tmp_path).path / "x_train.npy").unlink()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: store("mine", Raw(**images()), tmp_path), range(40)))
    assert len({result.path for result in results}) == 1
    assert all(contents(result) == contents(results[0]) for result in results)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_loser_of_a_race_uses_the_folder_that_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = cache_folder.sync_folder

    def overtaken(folder: Path) -> None:
        monkeypatch.setattr(cache_folder, "sync_folder", sync)
        store("mine", Raw(**images()), tmp_path)
        (winner,) = tmp_path.glob("mine-*")
        (winner / "first").touch()

    monkeypatch.setattr(cache_folder, "sync_folder", overtaken)
    assert (store("mine", Raw(**images()), tmp_path).path / "first").exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unwritable_cache_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match=r"file.* cannot be written .*COTERIE_CACHE"):
            store("mine", Raw(**images()), cache)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(DataError, match="No space left on device"):
        store("mine", Raw(**images()), tmp_path)
    assert not list(tmp_path.iterdir())
