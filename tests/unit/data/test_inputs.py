"""Samples for a trained model: what is read from a path, and what is refused in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import DataError
from coterie.data.inputs import read_path


def draw(path: Path, value: int = 0, size: tuple[int, int] = (6, 4), mode: str = "L") -> Path:
    """An image of one colour; `size` is width x height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = len(Image.new(mode, (1, 1)).getbands())
    Image.new(mode, size, value if channels == 1 else (value,) * channels).save(path)
    return path


def refusal(path: Path, **options: Any) -> str:
    """The one line with which a path is refused; it names the path."""
    with pytest.raises(DataError) as raised:
        read_path(path, **options)
    text = str(raised.value)
    assert "\n" not in text and str(path) in text
    return text


def test_a_flat_folder_has_names_in_order_and_no_labels(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", ".hidden.png"):
        draw(tmp_path / name, 10)
    (tmp_path / "notes.txt").write_text("no image")
    inputs = read_path(tmp_path)
    assert inputs.names == ("a.jpg", "b.png") and inputs.y is None
    assert (inputs.x.shape, inputs.x.dtype) == ((2, 1, 4, 6), np.uint8)


def test_class_folders_are_labels_also_below_train_and_test(tmp_path: Path) -> None:
    for name in ("cat/1.png", "train/dog, big/deep/2.png", "test/cat/3.png", "4.png"):
        draw(tmp_path / name)
    inputs = read_path(str(tmp_path))
    assert inputs.names == ("4.png", "cat/1.png", "test/cat/3.png", "train/dog, big/deep/2.png")
    assert inputs.y is not None
    assert inputs.y.tolist() == [None, "cat", "cat", "dog, big"]


@pytest.mark.parametrize(("mode", "channels"), [("L", 3), ("RGB", 1), ("RGB", 4), ("L", 1)])
def test_images_are_converted_to_the_channels_of_the_run(
    mode: str, channels: int, tmp_path: Path
) -> None:
    x = read_path(draw(tmp_path / "one.png", 77, mode=mode), channels=channels).x
    assert x.shape == (1, channels, 4, 6)
    assert (x[:, : min(channels, 3)] == 77).all()


def test_images_are_resized_as_in_training(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 50, (20, 10))
    draw(tmp_path / "b.png", 50, (7, 31))
    assert read_path(tmp_path, resize=5).x.shape == (2, 1, 5, 5)


def test_an_image_of_another_size_than_the_run_used_is_refused_with_both(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.png", size=(6, 4))
    assert read_path(path, size=(4, 6)).names == ("a.png",)
    text = refusal(path, size=(8, 8))
    assert "6 x 4" in text and "8 x 8" in text and "data.resize" in text


def test_images_of_two_sizes_are_refused(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", size=(6, 4))
    draw(tmp_path / "b.png", size=(6, 5))
    text = refusal(tmp_path)
    assert "6 x 4" in text and "6 x 5" in text


def test_a_truncated_image_is_refused_by_its_path(tmp_path: Path) -> None:
    path = draw(tmp_path / "cat" / "a.png", size=(60, 40))
    path.write_bytes(path.read_bytes()[:40])
    assert str(path) in refusal(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "first", "labels"),
    [
        ({"x": 1, "y": 1, "x_test": 2, "x_train": 3}, 1, [1, 1]),
        ({"x": 1, "x_test": 2, "y_test": 2}, 1, None),
        ({"x_test": 2, "y_test": 2, "x_train": 3, "y_train": 3}, 2, [2, 2]),
        ({"x_train": 3, "y_train": 3}, 3, [3, 3]),
    ],
)
def test_an_archive_gives_x_or_the_test_samples_or_the_training_samples(
    arrays: dict[str, int], first: int, labels: list[int] | None, tmp_path: Path
) -> None:
    filled = {
        name: np.full((2, 3) if name[0] == "x" else 2, value) for name, value in arrays.items()
    }
    np.savez(tmp_path / "some.npz", **filled)
    inputs = read_path(tmp_path / "some.npz")
    assert (inputs.x == first).all() and inputs.names == ("0", "1")
    assert (None if inputs.y is None else inputs.y.tolist()) == labels


def test_an_array_is_as_it_is_stored(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.save(tmp_path / "x.npy", x)
    inputs = read_path(tmp_path / "x.npy")
    assert inputs.y is None and inputs.x.dtype == np.uint8 and (inputs.x == x).all()


def test_a_csv_file_is_a_table_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('\ufeffage,"dose, mg"\n31, 0.5\n\n-2e1,"7"\n', encoding="utf-8")
    inputs = read_path(path)
    assert inputs.x.dtype == np.float32 and inputs.y is None
    assert inputs.names == ("2", "4")  # as errors call the rows, and an editor the lines
    assert inputs.x.tolist() == [[31.0, 0.5], [-20.0, 7.0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,sex\n31,1\n40,female\n", ":3: column 'sex' has 'female'"),
        ("age,sex\n31,\n", ":2: column 'sex' has ''"),
        ("age\nnan\n", ":2: column 'age' has 'nan'"),
        ("age\n1e39\n", ":2: column 'age' has '1e39'"),
        ("age,sex\n31\n", ":2 has 1 cells"),
        ("1,2\n3,4\n", "header"),
        ("age\n", "no row"),
        ("", "no row"),
    ],
)
def test_a_wrong_csv_file_is_refused_with_line_and_column(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert said in refusal(path)


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "missing")
    assert "no image" in refusal(tmp_path)
    for name, content in {
        "a.txt": b"?",
        "a.npz": b"?",
        "a.npy": b"?",
        "b.csv": b"\xff\xfe\x00",
        "a.png": b"?",
    }.items():
        (tmp_path / name).write_bytes(content)
        refusal(tmp_path / name)


def test_arrays_without_samples_or_with_other_labels_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.arange(3))
    np.save(tmp_path / "empty.npy", np.empty((0, 3)))
    np.savez(tmp_path / "labels.npz", x=np.ones((3, 2)), y=np.ones((3, 1)))
    np.savez(tmp_path / "named.npz", images=np.ones((3, 2)))
    assert "(3,)" in refusal(tmp_path / "flat.npy")
    assert "(0, 3)" in refusal(tmp_path / "empty.npy")
    assert "(3, 1)" in refusal(tmp_path / "labels.npz")
    assert "images" in refusal(tmp_path / "named.npz")
