"""Finished runs of many kinds, opened from two files: their models are those that were measured."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie
import toy
from coterie.core.errors import ConfigError, DataError
from coterie.data import datasets
from coterie.experiment.result import Result

SMALL: dict[str, Any] = {
    "run": {"rounds": 2},
    "data": {"limit": 300},
    "partition": {"clients": 3, "min_samples": 4},
    "local": {"steps": 4},
    "executor": {"kind": "serial"},
    "checkpoint": {"every": 1},
}
MODEL = "model.safetensors"
LOCAL = {"norm": "bn", "bn_buffers": "local"}
UNLABELLED: dict[str, Any] = {
    "net": {"norm": "bn"},
    "data.augment": "own_parts:Shade",
    "evaluate": {"with": ["knn"], "metric": "knn"},
}


@pytest.fixture(scope="module")
def x(toy_data: Path) -> np.ndarray:
    samples: np.ndarray = np.load(toy_data)["x_test"]
    return samples


@pytest.fixture(scope="module")
def y(toy_data: Path) -> np.ndarray:
    labels: np.ndarray = np.load(toy_data)["y_test"]
    return labels


def moved(result: Result, folder: Path) -> Result:
    """The run with nothing but `model.json` and the global weights."""
    folder.mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(result.folder / name, folder / name)
    return coterie.load(folder)


def toy_run(data: Path, folder: Path, **changes: Any) -> Result:
    tables = toy.tables(data)
    for name in ("net", "evaluate"):
        tables[name] = {**tables.get(name, {}), **changes.pop(name, {})}
    return coterie.run(tables, out=folder, **changes)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_predictions_on_the_digits_have_the_accuracy_that_was_measured(
    kernel: str, tmp_path: Path
) -> None:
    result = coterie.run(
        "digits/fedavg",
        out=tmp_path / "run",
        **SMALL,
        net={"backbone": "simple-cnn", "kernel": kernel},
    )
    digits = datasets.load("digits")
    alone = moved(result, tmp_path / "moved")
    # kernels round differently than torch, with which it is loaded: a sample may be on a boundary
    near = 1e-9 if kernel == "torch" else 1.5 / len(digits.y_test)
    for images in (digits.x_test, digits.x_test[:, 0], digits.x_test / np.float32(255)):
        score = alone.score(images, digits.y_test)
        assert score == pytest.approx(result.metrics["accuracy"], abs=near)
    prepared, encoder = alone.prepare(digits.x_test[:200]), alone.encoder()
    with torch.no_grad():
        assert np.array_equal(alone.encode(digits.x_test[:200]), encoder(prepared).numpy())
    described = json.loads((result.folder / "model.json").read_text())
    assert described["input"]["dtype"] == "uint8" and described["classes"] == list(range(10))


def test_a_target_that_clients_keep_is_the_online_network_again(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    result = toy_run(toy_data, tmp_path / "run", objective="byol", **UNLABELLED)
    alone = moved(result, tmp_path / "moved")
    net = alone.model()
    assert not any(name.startswith("target.") for name in load_file(result.folder / MODEL))
    target = net.target.state_dict()  # type: ignore[union-attr]
    assert target and all(t.equal(net.state_dict()[name]) for name, t in target.items())
    assert alone.encode(x).shape == (len(x), net.backbone.width)
    assert np.allclose(alone.encode(x[:1]), alone.encode(x)[:1], atol=1e-6)
    for call in (alone.predict, alone.predict_proba, lambda x: alone.score(x, x)):
        with pytest.raises(ConfigError, match=r"use encode.*coterie evaluate .*evaluate\.with=pro"):
            call(x)


def test_with_statistics_of_clients_the_global_model_uses_those_of_the_batch(
    toy_data: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray
) -> None:
    result = toy_run(toy_data, tmp_path / "run", net=LOCAL)
    net = moved(result, tmp_path / "moved").model()
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d)]
    assert norms and all(m.running_mean is None and not m.track_running_stats for m in norms)
    assert result.score(x, y) == pytest.approx(result.metrics["accuracy"])  # one batch there too
    assert np.array_equal(result.predict(x), net.eval()(result.prepare(x)).logits.argmax(1).numpy())
    many = np.tile(x, (6, 1))  # more than a batch, of the same mean and variance
    assert np.allclose(result.encode(many)[: len(x)], result.encode(x), atol=1e-4)
    with pytest.raises(DataError, match=r"x has one sample.*two or more, or choose a client"):
        result.predict(x[:1])


def test_with_statistics_of_clients_each_has_a_model_with_its_own(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    result = toy_run(toy_data, tmp_path / "run", net=LOCAL)
    plain, kept = load_file(result.folder / MODEL), result.model()
    means = []
    for client in result.clients:
        weights = load_file(result.folder / "personal" / f"{client}.safetensors")
        net = result.personal(client)
        assert weights.keys() == net.state_dict().keys() > kept.state_dict().keys()
        assert all(weights[name].equal(tensor) for name, tensor in plain.items())
        assert all(weights[name].equal(tensor) for name, tensor in net.state_dict().items())
        means.append(next(t for name, t in weights.items() if name.endswith("running_mean")))
        assert result.predict(x[:1], client=client)[0] == result.predict(x, client=client)[0]
    assert not means[0].equal(means[1])
    assert sorted(path.stem for path in (result.folder / "personal").iterdir()) == [*"012345"]


def test_without_such_statistics_nobody_writes_a_model_of_its_own(
    toy_data: Path, tmp_path: Path
) -> None:
    result = toy_run(toy_data, tmp_path / "run", net={"bn_buffers": "local"})  # no BatchNorm
    assert not (result.folder / "personal").exists()


def test_personal_models_are_those_that_were_measured(
    toy_data: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray
) -> None:
    two = {"name": "toy_methods:TwoModels"}
    result = toy_run(toy_data, tmp_path / "run", method=two, net=LOCAL)
    shares = toy.prepared(toy_data, tmp_path, method=two).partition
    for client, values in result.per_client.items():
        rows = shares.test[int(client)]
        score = result.score(x[rows], y[rows], client=client)
        assert score == pytest.approx(values["accuracy"])
    with pytest.raises(ConfigError, match=r"which = 'best' with client = '0'"):
        result.predict(x, client="0", which="best")


def test_personal_models_of_per_ssfl_have_every_name(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    changes = {**UNLABELLED, "net": LOCAL, "method": "per_ssfl", "objective": "simsiam"}
    result = toy_run(toy_data, tmp_path / "run", **changes)
    encoded = [result.encode(x, client=client) for client in ("0", "1")]
    assert not np.allclose(*encoded)
    assert result.encode(x).shape == encoded[0].shape
    names = load_file(result.folder / "personal" / "0.safetensors").keys()
    assert names == result.personal("0").state_dict().keys()


def test_a_method_without_a_global_model_asks_for_a_client(
    toy_data: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray
) -> None:
    result = toy_run(toy_data, tmp_path / "run", method="solo")
    for call in (result.model, result.encoder, lambda: result.predict(x)):
        with pytest.raises(ConfigError, match=r"'solo' has no global model.*'0', '1', '2'"):
            call()
    scores = [result.score(x, y, client=client) for client in result.clients]
    assert np.mean(scores) == pytest.approx(result.metrics["accuracy"])
    measured = {c: values["global_accuracy"] for c, values in result.per_client.items()}
    assert measured == pytest.approx(dict(zip(result.clients, scores, strict=True)))
    assert "best" not in json.loads((result.folder / "model.json").read_text())["weights"]


def test_a_method_with_networks_of_its_own_is_opened_too(tmp_path: Path) -> None:
    agreed = {"share_representations": True, "sense_rounds": 1}
    result = coterie.run("digits/mfcl", out=tmp_path / "run", **SMALL, method=agreed)
    digits = datasets.load("digits")
    alone = moved(result, tmp_path / "moved")
    assert json.loads((alone.folder / "model.json").read_text())["own_nets"]
    assert alone.prepare(digits.x_test).max() <= 1.0  # it takes images without normalisation
    assert alone.encode(digits.x_test[:9]).shape[0] == 9
