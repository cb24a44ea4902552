"""The picture of `embedding.npz` in the page of a run."""

from pathlib import Path

import numpy as np
import pytest
from made_run import charts_of, make_run, page_of

import toy
from coterie.report import write_report

TITLE = "Representations"


def save(folder: Path, count: int = 60, width: int = 5, clients: int = 4, **change: object) -> None:
    draw = np.random.default_rng(3)
    y = np.arange(count) % 3
    features = (np.eye(3, width)[y] * 8 + draw.normal(size=(count, width))).astype(np.float32)
    arrays = {"features": features, "class": y, "client": np.arange(count) % clients, **change}
    np.savez(folder / "embedding.npz", **{n: a for n, a in arrays.items() if a is not None})


def test_points_are_shown_by_class_and_by_client(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert TITLE not in charts_of(page_of(folder))
    save(folder)
    drawn = charts_of(page_of(folder))[TITLE]
    assert [view["name"] for view in drawn["views"]] == ["by class", "by client"]
    by_class, by_client = (view["groups"] for view in drawn["views"])
    assert [name for _, name in by_class["names"]] == ["class 0", "class 1", "class 2"]
    assert sorted(by_client["of"]) == sorted([0, 1, 2, 3] * 15)
    (panel,) = drawn["panels"]
    points = np.array([panel["x"], panel["y"]]).T
    middles = np.array([points[np.array(by_class["of"]) == k].mean(axis=0) for k in range(3)])
    near = np.linalg.norm(points[:, None] - middles, axis=2).argmin(axis=1)
    assert near.tolist() == by_class["of"]  # classes far apart stay apart
    assert drawn == charts_of(page_of(folder))[TITLE]  # the same picture every time


def test_h_and_z_are_panels_of_the_same_samples(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    z = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
    save(folder, projection=z, index=np.arange(100, 160))
    drawn = charts_of(page_of(folder))[TITLE]
    assert [panel["name"][0] for panel in drawn["panels"]] == ["h", "z"] and drawn["tied"]
    samples = dict(drawn["samples"])
    assert samples["client"][5] == "site 1" and samples["row of the training set"][5] == "105"
    with np.load(folder / "embedding.npz") as held:
        save(folder, projection=held["features"])  # without a projector z is h
    assert len(charts_of(page_of(folder))[TITLE]["panels"]) == 1


def test_few_of_many_points_are_shown_and_clients_without_signs_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    save(folder, count=1100, clients=65)
    page = page_of(folder)
    assert "1,000 of 1,100 training samples" in page
    assert [view["name"] for view in charts_of(page)[TITLE]["views"]] == ["by class"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": 7}, "too few samples"),
        ({"width": 1}, "too few samples"),
        ({"features": np.ones((60, 5))}, "too much the same"),
        ({"features": np.full((60, 5), np.inf)}, "too much the same"),
        ({"client": None}, "cannot be read"),
        ({"features": np.array([{}] * 60)}, "cannot be read"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path: Path, change: dict[str, object], said: str) -> None:
    folder = make_run(tmp_path / "run")
    save(folder, **change)  # type: ignore[arg-type]
    page = page_of(folder)
    assert said in page and TITLE not in charts_of(page)


def test_a_broken_file_spoils_no_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "embedding.npz").write_bytes(b"PK\x03\x04 no archive")
    assert "embedding.npz cannot be read" in page_of(folder)


def test_a_run_that_was_asked_for_it_has_the_picture(toy_data: Path, tmp_path: Path) -> None:
    result = toy.run(toy_data, tmp_path / "run", run={"rounds": 1}, record={"embedding": 60})
    by_class, by_client = charts_of((result.folder / "report.html").read_text())[TITLE]["views"]
    assert len(by_class["groups"]["names"]) == toy.CLASSES
    assert len(by_client["groups"]["names"]) == toy.CLIENTS
    assert write_report(result.folder).is_file()
