"""Users of a listing have test samples of their own; the listed ones stay the server's."""

from pathlib import Path

import numpy as np
from PIL import Image

from coterie.data.datasets import load
from coterie.data.partition import divide, load_class
from coterie.data.sources import csv as csv_source


def test_a_fifth_of_every_user_is_held_out_for_its_own_tests() -> None:
    users = ["a"] * 10 + ["b"] * 4 + ["c"] * 7
    classes = [*("01" * 5), *"0011", *"0000001"]
    paths = map(Path, map(str, range(len(users))))
    rows = list(map(csv_source._Row, users, classes, paths))
    train, own = csv_source._hold_out(rows)
    assert sorted(train + own) == sorted(rows)
    assert [row.user for row in own] == ["a", "a", "c"]
    assert sorted(row.label for row in own if row.user == "a") == ["0", "1"]
    assert csv_source._hold_out(rows)[1] == own


def test_users_are_clients_that_test_on_what_they_held_out(tmp_path: Path) -> None:
    root = tmp_path / "own"
    (root / "images").mkdir(parents=True)
    lines = [f"{n % 2},image{n},{n % 3}" for n in range(24)]
    (root / "train.csv").write_text("user_id,image_id,class\n" + "\n".join(lines[:20]) + "\n")
    (root / "test.csv").write_text("user_id,image_id,class\n" + "\n".join(lines[20:]) + "\n")
    for n in range(24):
        pixels = np.full((4, 4, 3), n, np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"image{n}.png")
    dataset = load("csv", str(root), tmp_path / "cache")
    assert dataset.groups is not None
    assert (len(dataset.y_train), len(dataset.y_test)) == (16, 8)
    assert dataset.groups.test.tolist()[:4] == [-1] * 4
    labels = dataset.y_train, dataset.y_test
    shares = divide(load_class("by-group")(), *labels, dataset.classes, 0, dataset.groups)
    assert {client: len(rows) for client, rows in shares.test.items()} == {0: 2, 1: 2}
    for client, rows in shares.test.items():
        assert set(dataset.groups.test[rows].tolist()) == {client}
