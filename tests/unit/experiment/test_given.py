"""Data of a Python program: every form of a site, what is held out, and what is refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import coterie
from coterie.core.errors import ConfigError, DataError
from coterie.experiment.given import divide_sites, read_sites
from coterie.kit import Method, stock

X = np.arange(240, dtype=np.float32).reshape(30, 8)
Y = np.arange(30) % 2


def paint(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.full((16, 16), number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")


def test_a_file_of_a_site_is_read_as_on_the_command_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:10], y_test=Y[:10])
    _, shares = divide_sites({"a": tmp_path / "a.npz", "b": (X, Y)}, None, 0)
    assert {c: len(rows) for c, rows in shares.train.items()} == {0: 30, 1: 24}
    assert {c: len(rows) for c, rows in shares.test.items()} == {0: 10, 1: 6}
    np.savez(tmp_path / "b.npz", x=X, labels=Y)
    with pytest.raises(DataError, match="'labels' is none of x, x_test"):
        divide_sites({"b": tmp_path / "b.npz"}, None, 0)


def test_a_folder_of_a_site_is_read_as_on_the_command_line(tmp_path: Path) -> None:
    for part, count in (("train", 12), ("test", 6)):
        for name in ("ill", "well", "none"):
            paint(tmp_path / "a" / part / name, count)
    paint(tmp_path / "b", 10)
    sites = {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}
    dataset, shares = divide_sites(sites, None, 0, resize=8)
    assert (dataset.shape, dataset.class_names) == ((1, 8, 8), ("ill", "well"))
    assert {c: len(rows) for c, rows in shares.train.items()} == {0: 36, 1: 8}
    assert {c: len(rows) for c, rows in shares.test.items()} == {0: 18, 1: 2}
    assert np.bincount(dataset.y_train + 1).tolist() == [20, 12, 12]


def test_a_class_of_one_sample_stays_in_the_training_set() -> None:
    labels = ["p"] * 12 + ["q"] * 12 + ["z"]
    for seed in range(5):
        dataset, _ = divide_sites({"a": (X[:25], labels)}, None, seed)
        assert dataset.class_names == ("p", "q", "z")


def test_frames_of_training_and_of_test_have_the_same_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(X[:, :2], columns=["age", "pulse"])
    frame["site"], frame["ill"] = ["n", "s"] * 15, Y
    result = coterie.fit(
        frame,
        site="site",
        label="ill",
        test=frame[:10],
        rounds=1,
        executor="serial",
        out=tmp_path / "run",
    )
    assert result.clients == ("n", "s")
    assert result.config["partition"] == {
        **{"kind": "by-group", "min_samples": 2},
        **{"skew": "none", "strength": 0.0, "label_swap": 0.0},
    }


def test_a_data_set_of_samples_alone_may_have_tuples_of_one() -> None:
    assert len(read_sites({"a": TensorDataset(torch.from_numpy(X))})["a"].x_train) == 30


@pytest.mark.parametrize("name", ["a" * 201, "a\0b", "..", " a", "a\nb", "", "a/b", 3])
def test_a_name_that_cannot_be_a_files_is_refused_before_training(name: Any) -> None:
    with pytest.raises(DataError, match=r"needs a name that can be a file's"):
        read_sites({name: X})


class Sparse:
    """A matrix as scipy has them."""

    shape = (30, 8)

    def __len__(self) -> int:
        raise TypeError("length is ambiguous")

    def toarray(self) -> np.ndarray:
        return X


@pytest.mark.parametrize(
    ("sites", "options", "message"),
    [
        ({"a": (X, [np.inf, *Y[1:]])}, {}, "site 'a': the labels, row 0: the label is inf"),
        ({"a": (X, [2**70, *Y[1:]])}, {}, "site 'a': the labels, row 0: the label is 1180"),
        ({"a": (X, np.eye(30, 3))}, {}, r"site 'a': the labels have shape \(30, 3\) .*argmax"),
        ({"a": ([[1, 2], [3, "n/k"]] * 5, Y[:10])}, {}, "site 'a', row 1: it holds the text 'n/k'"),
        ({"a": (X, 3)}, {}, "give an array or a list"),
        ({"a": Sparse()}, {}, r"site 'a' is a Sparse, not an array .*toarray"),
        ({"a": (Sparse(), Y)}, {}, r"site 'a' is a Sparse, not an array"),
        ({"a": ("a.npz", Y)}, {}, "site 'a' is a str, not an array of samples"),
        ({"a": (X[:4], Y[:4])}, {}, r"no site has five samples, .*test=\(x, y\)"),
        ({"a": (X, Y)}, {"kind": "video"}, "kind = 'video' must be one of: auto, image, signal"),
        ({"a": (X, Y)}, {"kind": "table", "data": {"kind": "image"}}, r"data\.kind is given twice"),
        ({"a": (X, Y)}, {"label": "ill"}, "label='ill' is a column of a data frame"),
        ({"a": (X, Y)}, {"partition": "iid"}, "partition is for data that Coterie divides"),
        ({"a": (X, Y)}, {"data": {"limit": 10}}, r"data\.limit = 10 has no meaning for samples"),
        ({"a": (X, Y)}, {"data": "digits"}, r"data\.name = 'digits' has no meaning for samples"),
        ({"a": (X, Y)}, {"resume": True}, r"resume=True needs out="),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    sites: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        coterie.fit(sites, **{"executor": "serial", "rounds": 1, **options})
    assert "\n" not in str(caught.value)


def test_sites_in_a_frame_may_be_numbers_and_text_and_not_missing(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": [1.0, 2.0, 3.0, 4.0], "site": [1, "a", 1, "a"]})
    assert list(read_sites(frame, site="site")) == ["1", "a"]
    frame["site"] = pd.array(["a", None, "b", "b"], dtype="string")
    with pytest.raises(DataError, match="row 1, column 'site': the site is missing"):
        read_sites(frame, site="site")


def test_cells_of_a_frame_are_named_by_site_row_and_column() -> None:
    frame = pd.DataFrame({"v": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 0.5], "site": ["n", "s", "s"]})
    with pytest.raises(DataError, match=r"site 's', row 2, column 'y': the label is 0\.5"):
        read_sites(frame, "y", "site")
    frame.loc[1, "v"] = np.inf
    with pytest.raises(DataError, match=r"site 's', row 1, column 'v': inf is no finite number"):
        read_sites(frame, site="site")


def test_another_object_of_the_same_class_is_noticed_on_resume(tmp_path: Path) -> None:
    @final
    @dataclass(frozen=True)
    class Mine(Method):
        """A method that no module has."""

        mu: float = 0.1
        init = stock.start_from_net
        broadcast = stock.send_model
        client_update = stock.train_objective
        server_update = stock.average
        model = stock.global_model

    call: dict[str, Any] = {"rounds": 1, "out": tmp_path / "run"}
    result = coterie.fit({"a": (X, Y)}, method=Mine(mu=0.1), **call)
    assert result.config["method"] == {"name": "object:Mine", "mu": 0.1}
    with pytest.raises(ConfigError, match=r"method\.mu is 0\.1 there and 9\.0 here"):
        coterie.fit({"a": (X, Y)}, method=Mine(mu=9.0), **call, resume=True)
    with pytest.raises(ConfigError, match="holds a run already; add resume=True"):
        coterie.fit({"a": (X, Y)}, method=Mine(mu=0.1), **call)
    assert coterie.load(tmp_path / "run").predict(X).shape == (30,)
