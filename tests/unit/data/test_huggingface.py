"""Hugging Face data sets on disk: tables, images and arrays, with labels, sites and splits."""

from pathlib import Path
from typing import Any

import datasets as hf
import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import ConfigError, DataError
from coterie.data import datasets
from coterie.data.table import TableOptions

CLASSES = hf.ClassLabel(names=["well", "ill"])


def save(folder: Path, columns: dict[str, Any], features: dict[str, Any]) -> str:
    hf.disable_progress_bars()
    hf.Dataset.from_dict(columns, features=hf.Features(features)).save_to_disk(str(folder))
    return str(folder)


def make_table(rows: int) -> dict[str, Any]:
    return {
        "age": [float(row) for row in range(rows)],
        "smoker": ["yes", "no"] * (rows // 2),
        "hospital": [1, 2] * (rows // 2),
        "state": [0, 0, 1, 1] * (rows // 4),
    }


FEATURES = {
    "age": hf.Value("float64"),
    "smoker": hf.Value("string"),
    "hospital": hf.Value("int64"),
    "state": CLASSES,
}


def test_columns_of_values_are_a_table_with_sites_and_class_names(tmp_path: Path) -> None:
    root = save(tmp_path / "d", make_table(40), FEATURES)
    read = datasets.load("huggingface", root, table=TableOptions(site="hospital"))
    assert read.class_names == ("well", "ill")
    assert read.groups is not None and read.groups.names == ("1", "2")
    assert [column["name"] for column in read.columns] == ["age", "smoker"]
    assert (len(read.y_train), len(read.y_test)) == (32, 8)
    assert np.allclose(read.x_train[:, 0].mean(), 0, atol=1e-6)


def test_a_split_for_testing_is_used(tmp_path: Path) -> None:
    hf.disable_progress_bars()
    parts = {
        name: hf.Dataset.from_dict(make_table(rows), features=hf.Features(FEATURES))
        for name, rows in (("train", 20), ("test", 8))
    }
    hf.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    read = datasets.load(
        "huggingface", str(tmp_path / "d"), table=TableOptions(site="hospital", label="state")
    )
    assert (len(read.y_train), len(read.y_test)) == (20, 8)


def test_images_are_decoded(tmp_path: Path) -> None:
    pixels = [np.full((6, 5), 10 * row, np.uint8) for row in range(20)]
    columns = {
        "picture": [Image.fromarray(image) for image in pixels],
        "site": ["north", "south"] * 10,
        "label": [0, 0, 1, 1] * 5,
    }
    features = {"picture": hf.Image(), "site": hf.Value("string"), "label": CLASSES}
    root = save(tmp_path / "d", columns, features)
    read = datasets.load("huggingface", root, table=TableOptions(site="site"))
    assert read.kind == "image" and read.shape == (1, 6, 5)
    assert read.groups is not None
    values = [*read.x_train[:, 0, 0, 0], *read.x_test[:, 0, 0, 0]]
    assert sorted(map(int, values)) == [10 * row for row in range(20)]
    rows = read.x_train[:, 0, 0, 0] // 10
    assert (read.y_train == rows // 2 % 2).all()
    assert (read.groups.train == rows % 2).all()
    with pytest.raises(ConfigError, match=r"data.kind = 'signal', and .* has images"):
        datasets.load("huggingface", root, kind="signal")


def test_arrays_need_their_kind_where_axes_do_not_tell(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(10, 3, 4)).astype(np.float32)
    features = {"signal": hf.Array2D((3, 4), "float32"), "label": CLASSES}
    root = save(tmp_path / "d", {"signal": x, "label": [0, 1] * 5}, features)
    with pytest.raises(DataError, match=r"say data.kind=image or data.kind=signal"):
        datasets.load("huggingface", root)
    read = datasets.load("huggingface", root, kind="signal")
    assert read.kind == "signal" and read.shape == (3, 4) and len(read.x_test) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "x"}, "data.label='x' is no column; it has: age, smoker, hospital, state"),
        ({"site": "x"}, "data.site='x' is no column"),
    ],
)
def test_a_wrong_column_is_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    root = save(tmp_path / "d", make_table(8), FEATURES)
    with pytest.raises(DataError, match=message):
        datasets.load("huggingface", root, table=TableOptions(**options))


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("nothing")
    with pytest.raises(DataError, match="cannot be read as a Hugging Face data set"):
        datasets.load("huggingface", str(tmp_path))
