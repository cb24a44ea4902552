"""Labels are optional everywhere: no labels, some labels, labels for measuring alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import coterie
from coterie.core.errors import ConfigError
from coterie.engine.record import NoteEvent

TINY: dict[str, Any] = {
    "net": {"backbone": "mlp", "projection": 8},
    "rounds": 2,
    "executor": "serial",
    "local": {"batch_size": 8},
}
Y20 = np.arange(20) % 2
SIMSIAM = {"name": "simsiam", "hidden": 16, "bottleneck": 8}
Fit = Callable[..., tuple[coterie.Result, list[str]]]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Fit, and return what was noted beside the result."""

    def run(sites: Any, **changes: Any) -> tuple[coterie.Result, list[str]]:
        notes: list[str] = []

        def listen(event: Any) -> None:
            if isinstance(event, NoteEvent):
                notes.append(event.text)

        tables = {**TINY, **changes}
        result = coterie.fit(sites, out=tmp_path / "run", recorders=[listen], **tables)
        return result, notes

    return run


def images(count: int, seed: int) -> np.ndarray:
    """Grey images of 10 x 10 pixels, dark ones and bright ones in turn."""
    drawn = np.random.default_rng(seed).integers(0, 100, size=(count, 10, 10))
    return (drawn + 120 * (np.arange(count) % 2)[:, None, None]).astype(np.uint8)


def test_samples_alone_are_enough(fit: Fit) -> None:
    result, notes = fit({"a": images(30, 0), "b": images(20, 1)}, objective=SIMSIAM)
    assert result.classes == () and result.clients == ("a", "b")
    assert "not measured, as the data have no labels: knn" in notes
    assert "evaluate.metric = 'feature_std' instead of 'knn'" in notes
    assert "data.augment = auto: views by 'resized-crop'" in notes
    assert result.config["evaluate"]["with"] == ["geometry"]
    assert result.config["data"]["augment"] == "resized-crop"
    assert set(result.metrics) >= {"feature_std", "train_loss"}
    assert result.encode(images(5, 2)).shape == (5, 200)


def test_without_labels_something_to_learn_must_be_chosen(fit: Fit) -> None:
    with pytest.raises(ConfigError, match=r"no labels; .* 'byol', 'rotation', 'simclr', 'simsiam'"):
        fit({"a": images(30, 0)})
    with pytest.raises(ConfigError, match=r"'supervised' needs labels, .* objective\.name = byol"):
        fit({"a": images(30, 0)}, objective="supervised")


def test_labels_at_one_site_measure_and_those_of_others_are_not_missed(fit: Fit) -> None:
    labelled = (images(40, 0), np.array(["dark", "bright"])[np.arange(40) % 2])
    result, notes = fit({"a": labelled, "b": images(40, 1)}, objective=SIMSIAM)
    assert result.classes == ("bright", "dark")
    assert not any("not measured" in note for note in notes)
    assert result.metrics["knn_bank"] == 32  # a fifth of site a is held out
    assert 0 <= result.metrics["knn"] <= 1


def test_supervised_training_leaves_unlabelled_samples_and_sites_out(fit: Fit) -> None:
    some = np.where(np.arange(40) < 20, np.arange(40) % 2, -1)
    sites = {"a": (images(40, 0), some), "b": images(30, 1), "c": (images(20, 2), Y20)}
    result, notes = fit(sites)
    assert result.clients == ("a", "c")
    assert "40 of 72 training samples have no label and are not trained on" in notes
    assert "without any label, and so without a part in the training: b" in notes
    assert set(result.per_client) == {"a", "c"}
    assert set(result.predict(images(6, 5)).tolist()) <= {0, 1}


def test_one_class_is_enough_for_all_but_supervised(fit: Fit) -> None:
    site = (images(30, 0), np.full(30, "dark"))
    with pytest.raises(ConfigError, match=r"'supervised' needs two classes or more, .* 'dark'"):
        fit({"a": site})
    result, _ = fit({"a": site}, objective=SIMSIAM)
    assert result.metrics["knn"] == 1.0


def test_labels_of_the_test_samples_alone_name_classes_and_measure_nothing(fit: Fit) -> None:
    test = (images(20, 3), Y20 + 5)
    result, notes = fit({"a": images(30, 0)}, test=test, objective=SIMSIAM)
    assert result.classes == (5, 6)
    assert "not measured, as no training sample has a label: knn" in notes


def test_two_equal_views_are_refused(fit: Fit) -> None:
    with pytest.raises(ConfigError, match=r"data\.augment = 'none' makes the two views of obj"):
        fit({"a": images(30, 0)}, objective=SIMSIAM, data={"augment": "none"})


def test_a_partition_by_class_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=images(40, 0))
    changes: dict[str, Any] = {"data": {"name": "arrays", "root": str(tmp_path / "own.npz")}}
    with pytest.raises(ConfigError, match="Dirichlet needs the class of every sample, and 32 of"):
        coterie.run("digits/simsiam", out=tmp_path / "a", **changes)
    changes |= {"partition": {"kind": "iid", "clients": 2}, **TINY, "objective": SIMSIAM}
    result = coterie.run("digits/simsiam", out=tmp_path / "b", **changes)
    assert result.clients == ("0", "1") and result.classes == ()


def paint(folder: Path, count: int, seed: int) -> None:
    folder.mkdir(parents=True)
    for number, pixels in enumerate(images(count, seed)):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")


def test_flat_folders_and_the_class_none_have_no_labels(tmp_path: Path) -> None:
    root = tmp_path / "sites"
    paint(root / "flat", 20, 0)
    paint(root / "mixed" / "none", 10, 1)
    paint(root / "mixed" / "dark", 10, 2)
    paint(root / "mixed" / "bright", 10, 3)
    tables: dict[str, Any] = {**TINY, "data": {"name": "sites", "root": str(root)}}
    result = coterie.run("digits/simsiam", out=tmp_path / "run", **{**tables, "objective": SIMSIAM})
    assert result.config["partition"]["kind"] == "by-group"  # not that of the digits
    assert (result.clients, result.classes) == (("flat", "mixed"), ("bright", "dark"))
    assert result.metrics["knn_bank"] == 16
    (root / "mixed" / "stray.png").write_bytes((root / "flat" / "00.png").read_bytes())
    with pytest.raises(coterie.CoterieError, match=r"stray\.png lies beside folders of classes"):
        coterie.run("digits/simsiam", out=tmp_path / "again", **tables)


def test_archives_may_have_x_alone(tmp_path: Path) -> None:
    root = tmp_path / "sites"
    root.mkdir()
    np.savez(root / "a.npz", x=images(30, 0))
    np.savez(root / "b.npz", x_train=images(30, 1), x_test=images(10, 2))
    tables: dict[str, Any] = {**TINY, "data": {"name": "sites", "root": str(root)}}
    result = coterie.run("digits/byol", out=tmp_path / "run", **tables)
    assert (result.clients, result.classes) == (("a", "b"), ())
    np.savez(root / "c.npz", x=images(20, 3), y=Y20)
    result = coterie.run("digits/byol", out=tmp_path / "more", **tables)
    assert (result.clients, result.classes) == (("a", "b", "c"), (0, 1))
    assert result.metrics["knn_bank"] == 16


def test_a_federated_probe_asks_the_sites_that_have_labels(fit: Fit) -> None:
    labelled = (images(40, 0), np.arange(40) % 2)
    sites = {"a": labelled, "b": images(30, 1), "c": labelled}
    evaluate = {"with": ["knn", "own_probe"], "last": ["federated_probe"]}
    result, _ = fit(sites, objective=SIMSIAM, evaluate=evaluate)
    assert result.metrics["federated_probe_labels"] == 64
    assert set(result.per_client) == {"a", "c"}


def test_signals_without_labels_are_learned_from(tmp_path: Path) -> None:
    waves = np.random.default_rng(0).normal(size=(30, 2, 64)).astype(np.float32)
    with pytest.raises(coterie.CoterieError, match=r"site 'a' has float32 .* kind='image'"):
        coterie.fit({"a": waves}, objective=SIMSIAM, out=tmp_path / "run")
    tables = {key: value for key, value in TINY.items() if key != "net"}
    result = coterie.fit(
        {"a": waves, "b": waves[:20]},
        kind="signal",
        objective=SIMSIAM,
        net={"projection": 8},
        out=tmp_path / "run",
        **tables,
    )
    assert result.config["net"]["backbone"] == "conv1d"
    assert result.config["data"]["augment"] == "jitter-scale-crop"
    assert result.encode(waves).shape == (30, 128)


def test_tables_without_labels_are_learned_from(fit: Fit) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    result, notes = fit({"a": rows, "b": rows}, objective=SIMSIAM)
    assert "data.augment = auto: views by 'mask-noise'" in notes
    assert result.encode(rows).shape == (40, 200)


def test_colours_beyond_the_unit_range_are_cropped_only(fit: Fit) -> None:
    wide = np.random.default_rng(0).normal(size=(30, 3, 32, 32)).astype(np.float32)
    _, notes = fit({"a": wide}, objective=SIMSIAM)
    assert "data.augment = auto: views by 'resized-crop'" in notes


def test_a_configuration_may_name_parts_without_tables(tmp_path: Path) -> None:
    tables = {"method": "fedprox", "objective": SIMSIAM, "data": "digits", "partition": "iid"}
    result = coterie.run(tables, out=tmp_path / "run", **{**TINY, "data.limit": 200})
    assert result.config["method"]["name"] == "fedprox"
