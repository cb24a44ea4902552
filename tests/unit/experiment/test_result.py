"""A run opened from its files: what it tells, what it predicts, what it refuses."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import coterie
import toy
from coterie.core.errors import ConfigError, DataError
from coterie.experiment import config
from coterie.experiment.result import Result
from coterie.nets.heads import Network

Copy = Callable[..., Result]


@pytest.fixture(scope="module")
def reference(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A finished run of four rounds, with clients that were evaluated."""
    return toy.run(toy_data, tmp_path_factory.mktemp("reference") / "run")


@pytest.fixture
def copy(reference: Result, tmp_path: Path) -> Copy:
    """Copy files of the run to an empty folder, all of them or those that are named."""

    def make(*names: str) -> Result:
        if not names:
            shutil.copytree(reference.folder, tmp_path / "copy")
        for name in names:
            (tmp_path / "copy").mkdir(exist_ok=True)
            shutil.copy(reference.folder / name, tmp_path / "copy" / name)
        return coterie.load(tmp_path / "copy")

    return make


@pytest.fixture(scope="module")
def x(toy_data: Path) -> np.ndarray:
    """The test samples."""
    samples: np.ndarray = np.load(toy_data)["x_test"]
    return samples


@pytest.fixture(scope="module")
def y(toy_data: Path) -> np.ndarray:
    labels: np.ndarray = np.load(toy_data)["y_test"]
    return labels


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of `model.json`, as a file of a version that wrote no hash of it."""
    path = folder / "model.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if key != "sha256"}))


def test_it_tells_what_the_run_was_and_measured(reference: Result) -> None:
    result = coterie.load(str(reference.folder))
    assert result.folder == reference.folder
    assert result.config["method"]["name"] == "fedavg" and result.config["run"]["rounds"] == 4
    assert result.classes == (0, 1, 2) and result.clients == tuple("012345")
    assert isinstance(result.history, coterie.History) and len(result.history) == 4
    assert result.metrics == result.history[-1].metrics
    assert result.per_client.keys() <= set(result.clients) and result.per_client
    assert all({"accuracy", "loss"} <= values.keys() for values in result.per_client.values())
    mean = np.mean([values["accuracy"] for values in result.per_client.values()])
    assert mean == pytest.approx(result.metrics["client_accuracy_mean"])
    assert "4 rounds" in repr(result) and "\n" not in repr(result)


def test_the_best_round_is_the_one_whose_weights_are_there(reference: Result) -> None:
    described = json.loads((reference.folder / "model.json").read_text())["weights"]
    series = reference.history["accuracy"]
    assert reference.best.round == max(series, key=lambda pair: pair[1])[0]
    assert described["best"]["round"] == reference.best.round
    assert described["best"]["value"] == reference.best.metrics["accuracy"]
    assert described["last"]["round"] == 3


def test_best_weights_give_the_accuracy_of_the_best_round(
    toy_data: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.metric = 'loss' is better the lower"):
        toy.run(toy_data, tmp_path / "run", evaluate={"metric": "loss"})
    monkeypatch.setattr(config, "_LOWER", ())  # the highest loss is that of the first round
    result = toy.run(toy_data, tmp_path / "run", evaluate={"metric": "loss"})
    assert result.best.round == 0
    first, last = (event.metrics["accuracy"] for event in (result.history[0], result.history[-1]))
    assert first < last
    assert result.score(x, y, which="best") == pytest.approx(first)
    assert result.score(x, y) == pytest.approx(last)


def test_predictions_have_the_accuracy_that_was_measured(
    reference: Result, x: np.ndarray, y: np.ndarray
) -> None:
    predicted = reference.predict(x)
    assert predicted.dtype == np.int64 and predicted.shape == y.shape
    assert float((predicted == y).mean()) == pytest.approx(reference.metrics["accuracy"])
    assert reference.score(x, y) == pytest.approx(reference.metrics["accuracy"])


def test_two_files_alone_are_enough(reference: Result, copy: Copy, x: np.ndarray) -> None:
    moved = copy("model.json", "model.safetensors")
    assert np.array_equal(moved.predict(x), reference.predict(x))
    assert np.array_equal(moved.encode(x), reference.encode(x))
    assert moved.classes == reference.classes and not moved.history
    assert moved.metrics == {} and moved.per_client == {}
    with pytest.raises(DataError, match=r"config\.toml is missing"):
        moved.config  # noqa: B018
    with pytest.raises(DataError, match="no finished round"):
        moved.best  # noqa: B018
    with pytest.raises(DataError, match=r"best\.safetensors is missing"):
        moved.model("best")


def test_the_data_and_their_cache_are_not_needed(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x: np.ndarray
) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    data = Path(shutil.copy(toy_data, tmp_path / "moved.npz"))
    result = toy.run(data, tmp_path / "run")
    expected = result.predict(x)
    shutil.rmtree(tmp_path / "cache")
    data.unlink()
    assert np.array_equal(coterie.load(tmp_path / "run").predict(x), expected)


def test_representations_are_what_the_modules_give(reference: Result, x: np.ndarray) -> None:
    prepared = reference.prepare(x)
    with torch.no_grad():
        outputs = reference.model()(prepared)
        assert np.array_equal(reference.encode(x), reference.encoder()(prepared).numpy())
    assert np.array_equal(reference.encode(x, layer="z"), outputs.z.numpy())
    probabilities = reference.predict_proba(x)
    assert np.array_equal(probabilities, outputs.logits.softmax(dim=1).numpy())
    assert np.allclose(probabilities.sum(axis=1), 1.0) and probabilities.shape == (len(x), 3)
    many = np.tile(x, (10, 1))
    assert np.allclose(reference.encode(many)[: len(x)], reference.encode(x), atol=1e-6)


def test_modules_are_plain_torch_in_eval_mode_on_the_cpu(reference: Result, x: np.ndarray) -> None:
    net, encoder = reference.model(), reference.encoder()
    assert isinstance(net, Network) and not net.training and not encoder.training
    assert {p.device.type for p in net.parameters()} == {"cpu"}
    prepared = reference.prepare(x)
    prepared.requires_grad_()
    net(prepared).logits.sum().backward()
    assert prepared.grad is not None


def test_loading_leaves_the_generators_alone(reference: Result) -> None:
    before = torch.get_rng_state()
    reference.model()
    assert torch.equal(torch.get_rng_state(), before)


def test_labels_that_are_missing_are_not_counted(
    reference: Result, x: np.ndarray, y: np.ndarray
) -> None:
    predicted = reference.predict(x).tolist()
    wrong = (predicted[0] + 1) % 3
    assert reference.score(x[:4], [wrong, None, -1, predicted[3]]) == 0.5
    assert reference.score(x[:3], [float("nan"), float(predicted[1]), np.nan]) == 1.0
    with pytest.raises(DataError, match="y has 3 entries for 4 samples"):
        reference.score(x[:4], y[:3])
    for labels in ([None, -1], ["0", "1"]):
        with pytest.raises(DataError, match="y has no label of the run's classes, which are 0"):
            reference.score(x[:2], labels)


def test_classes_of_text_come_back_as_text(copy: Copy, x: np.ndarray, y: np.ndarray) -> None:
    result = copy()
    edit(result.folder, classes=["cat", "dog", "eel"])
    names = np.array(["cat", "dog", "eel"])
    assert result.predict(x).dtype.kind == "U" and set(result.predict(x)) <= set(names)
    assert result.score(x, names[y]) == pytest.approx(result.metrics["accuracy"])
    right = str(result.predict(x)[0])
    assert result.score(x[:3], [right, float("nan"), None]) == 1.0


def test_a_figure_shows_metrics_over_the_rounds(reference: Result) -> None:
    figure = reference.plot()
    (line,) = figure.data
    assert line.name == "accuracy" and list(line.x) == [1, 2, 3, 4]
    assert list(line.y) == [value for _, value in reference.history["accuracy"]]
    assert [line.name for line in reference.plot("loss", "train_loss").data] == [
        "loss",
        "train_loss",
    ]
    with pytest.raises(ConfigError, match="did you mean 'loss'"):
        reference.plot("los")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def save_as(folder: Path, weights: dict[str, Tensor]) -> None:
    """Replace the weights, with the hash that belongs to them."""
    save_file(weights, folder / "model.safetensors")
    entry = json.loads((folder / "model.json").read_text())["weights"]
    entry["last"]["sha256"] = hashlib.sha256(
        (folder / "model.safetensors").read_bytes()
    ).hexdigest()
    edit(folder, weights=entry)


def test_a_file_that_is_not_the_runs_own_is_refused(copy: Copy, tmp_path: Path) -> None:
    result = copy()
    file = result.folder / "model.safetensors"
    weights = load_file(file)
    flip(file)
    with pytest.raises(DataError, match=r"model\.safetensors is not the file .*SHA-256"):
        result.model()
    save_as(result.folder, {name: t for name, t in weights.items() if name != "classifier.bias"})
    with pytest.raises(DataError, match=r"is not of the network .* lacks 'classifier\.bias'"):
        result.model()
    save_as(result.folder, {**weights, "extra": torch.zeros(1)})
    with pytest.raises(DataError, match="it has 'extra', which the network has not"):
        result.model()
    save_as(result.folder, {**weights, "classifier.bias": torch.zeros(4)})
    with pytest.raises(DataError, match=r"'classifier\.bias' is \[4\] of torch\.float32 there and"):
        result.model()
    save_as(result.folder, {**weights, "classifier.bias": torch.zeros(3, dtype=torch.float64)})
    with pytest.raises(DataError, match=r"'classifier\.bias' is \[3\] of torch\.float64 there and"):
        result.model()
    file.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors is missing"):
        result.model()


def test_what_is_not_there_is_refused_in_one_line(
    reference: Result, x: np.ndarray, tmp_path: Path
) -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: reference.model("first"), "which = 'first' must be 'last' or 'best'"),  # type: ignore[arg-type]
        (
            lambda: reference.personal("0"),
            "'fedavg' makes no personal models: leave the client out",
        ),
        (
            lambda: reference.predict(x, client="9"),
            "client = '9' is not known; there are: '0', '1'",
        ),
        (lambda: reference.prepare(x, "9"), "client = '9' is not known"),
        (lambda: reference.encode(x, layer="y"), "layer = 'y' must be 'h' or 'z'"),  # type: ignore[arg-type]
    ]
    for call, message in cases:
        with pytest.raises(ConfigError, match=message):
            call()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="there is no run in"):
            coterie.load(folder)


def test_an_unfinished_run_tells_its_history_and_how_it_is_resumed(
    toy_data: Path, tmp_path: Path
) -> None:
    stop = toy.StopAfter(2, toy.Killed)
    with pytest.raises(toy.Killed):
        toy.run(toy_data, tmp_path / "run", recorders=[stop])
    result = coterie.load(tmp_path / "run")
    assert len(result.history) == 3 and result.config["run"]["rounds"] == 4
    assert result.best.round in (0, 1, 2) and result.clients
    with pytest.raises(ConfigError, match=rf"coterie run --out {tmp_path / 'run'} --resume"):
        result.model()


def test_an_export_is_written_by_the_module_for_it(
    reference: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Exporter:
        @staticmethod
        def export(result: Result, path: Path, **options: Any) -> Path:
            given.update(options, result=result)
            return Path(path)

    monkeypatch.setitem(__import__("sys").modules, "coterie.experiment.export", Exporter)
    assert reference.export(tmp_path / "a.onnx", what="encoder") == tmp_path / "a.onnx"
    options = {"what": "encoder", "client": None, "which": "last", "format": None}
    assert given == {**options, "result": reference}
