"""The picture of `embedding.npz` in the page of a run."""

from pathlib import Path

import numpy as np
import pytest
from made_run import by_name, charts_of, make_run, page_of

import toy
from coterie.report import write_report

BY_CLASS, BY_CLIENT = "Representations by class", "Representations by client"


def save(folder: Path, count: int = 60, width: int = 5, clients: int = 4, **change: object) -> None:
    draw = np.random.default_rng(3)
    y = np.arange(count) % 3
    features = (np.eye(3, width)[y] * 8 + draw.normal(size=(count, width))).astype(np.float32)
    arrays = {"features": features, "class": y, "client": np.arange(count) % clients, **change}
    np.savez(folder / "embedding.npz", **{n: a for n, a in arrays.items() if a is not None})


def test_points_are_shown_by_class_and_by_client(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert BY_CLASS not in charts_of(page_of(folder))
    save(folder)
    charts = charts_of(page_of(folder))
    assert list(by_name(charts[BY_CLASS])) == ["class 0", "class 1", "class 2"]
    assert [len(trace["x"]) for trace in charts[BY_CLIENT]["data"]] == [15] * 4
    middle = {
        name: (np.mean(trace["x"]), np.mean(trace["y"]))
        for name, trace in by_name(charts[BY_CLASS]).items()
    }
    for name, trace in by_name(charts[BY_CLASS]).items():  # classes far apart stay apart
        for x, y in zip(trace["x"], trace["y"], strict=True):
            near = min(middle, key=lambda one: np.hypot(x - middle[one][0], y - middle[one][1]))
            assert near == name
    assert charts == charts_of(page_of(folder))  # the same picture every time


def test_few_of_many_points_are_shown_and_clients_without_signs_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    save(folder, count=1100, clients=65)
    page = page_of(folder)
    assert "1,000 of 1,100 training samples" in page
    assert BY_CLASS in charts_of(page) and BY_CLIENT not in charts_of(page)


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
    assert said in page and BY_CLASS not in charts_of(page)


def test_a_broken_file_spoils_no_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "embedding.npz").write_bytes(b"PK\x03\x04 no archive")
    assert "embedding.npz cannot be read" in page_of(folder)


def test_a_run_that_was_asked_for_it_has_the_picture(toy_data: Path, tmp_path: Path) -> None:
    result = toy.run(toy_data, tmp_path / "run", run={"rounds": 1}, record={"embedding": 60})
    charts = charts_of((result.folder / "report.html").read_text())
    assert len(charts[BY_CLASS]["data"]) == toy.CLASSES
    assert len(charts[BY_CLIENT]["data"]) == toy.CLIENTS
    assert write_report(result.folder).is_file()
