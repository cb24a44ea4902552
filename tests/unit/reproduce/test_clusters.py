"""Clusters in a plane, counted on points whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest

from coterie.cli.main import main
from coterie.reproduce.clusters import (
    Clusters,
    count_by_silhouette,
    count_clusters,
    describe_clusters,
    describe_neighbours,
    share_neighbours,
)


def heaps(*centres: tuple[float, float], each: int = 20, spread: float = 0.1) -> np.ndarray:
    """Points around some centres."""
    draw = np.random.default_rng(0)
    return np.concatenate([draw.normal(centre, spread, (each, 2)) for centre in centres])


def test_classes_in_heaps_of_their_own_are_distinguishable() -> None:
    points = heaps((0, 0), (9, 0), (0, 9))
    counted = count_clusters(points, np.repeat([4, 5, 7], 20))
    assert counted.distinguishable == [4, 5, 7]
    assert counted.shares == {4: 1.0, 5: 1.0, 7: 1.0}
    assert counted.silhouette == 3


def test_classes_that_share_a_heap_are_not() -> None:
    points = heaps((0, 0), (0, 0), (0, 0), (9, 9))
    counted = count_clusters(points, np.repeat([0, 1, 2, 3], 20))
    assert counted.distinguishable == [3]
    assert counted.silhouette == 2  # heaps are not classes


def test_the_share_is_of_the_nearest_points_by_hand() -> None:
    points = np.array([[0.0, 0], [1, 0], [2, 0], [3, 0], [10, 0]])
    y = np.array([0, 0, 1, 1, 1])
    # nearest two: {1, 2}, {0, 2}, {1, 3}, {2, 1}, {3, 2}
    assert share_neighbours(points, y, k=2) == {
        0: 0.5,
        1: pytest.approx((0.5 + 0.5 + 1) / 3),
    }
    assert share_neighbours(points[:1], y[:1]) == {0: 0.0}


def test_points_that_are_all_alike_are_one_cluster() -> None:
    assert count_by_silhouette(np.zeros((20, 2))) == 1


def test_the_last_row_is_compared_with_each_of_the_others() -> None:
    def make(*given: float) -> Clusters:
        return Clusters(9, dict(enumerate(given)), 3)

    numbers = {
        "images of client 1": make(0.9, 0.2),
        "BN": make(0.9, 0.2, 0.1),
        "GN": make(0.9, 0.8, 0.1),
        "PN": make(0.9, 0.8, 0.5),
    }
    text = describe_clusters(numbers, ["BN", "GN", "PN"])
    assert text.startswith("distinguishable classes: images of client 1 1 of 2 (3 by silhouette);")
    assert "PN has more than BN: holds (one seed)." in text
    assert "PN has more than GN: does not hold (one seed)." in text


def test_panels_are_compared_by_the_mean_share_over_classes() -> None:
    panels = {"all": Clusters(9, {0: 0.9, 1: 0.4}, 2), "one": Clusters(9, {0: 0.6, 1: 0.5}, 2)}
    assert describe_neighbours(panels, [("all", "one"), ("one", "all")]) == (
        "same class among the 10 nearest points: all 0.650; one 0.550. all has more than one: "
        "holds (one seed). one has more than all: does not hold (one seed)."
    )


RECIPE = """# coterie reproduce small        A picture
paper = "Somebody, Figure 1"
about = "A picture."
reference = "FedAvg"
base = "digits/fedavg"

[features]
of = "global"
rows = ["FedAvg", "FedProx"]
raw = true
clients = [2]

[scale.smoke]
set = { "data.limit" = 300, "run.rounds" = 1, "local.epochs" = 1, "executor.kind" = "serial" }

[[row]]
name = "FedAvg"
config = "fedavg"

[[row]]
name = "FedProx"
config = "fedprox"

[[row]]
name = "alone"
config = "solo"
"""


def test_a_recipe_draws_global_models_and_a_client_s_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(RECIPE)
    asked = ["reproduce", str(file), "--scale", "smoke", "--out", str(tmp_path), "--rows"]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "FedAvg"])
    assert not ended.value.code
    folder = tmp_path / "small-smoke"
    assert list(json.loads((folder / "features.json").read_text())) == [
        "images of client 3",
        "FedAvg",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "FedProx"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "; FedProx " in said and "has more than" not in said  # the smoke scale claims nothing
    numbers = json.loads((folder / "features.json").read_text())
    assert list(numbers) == ["images of client 3", "FedAvg", "FedProx"]
    assert numbers["FedProx"]["samples"] == 60
    with np.load(folder / "features.npz") as arrays:
        assert arrays["places"].shape == (len(arrays["classes"]), 2)
        assert set(arrays["clients"][arrays["panels"] == 0]) == {2}
        assert len(set(arrays["clients"][arrays["panels"] == 1])) > 5
    page = (folder / "features.html").read_text()
    assert "Clusters of global models" in page and "images of client 3" in page
