"""`model.json`: what is written is read, and what is no such file is refused in one line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.core.errors import DataError
from coterie.experiment.model_file import (
    InputDescription,
    ModelFile,
    SavedWeights,
    WeightsFile,
    read_model_file,
)
from coterie.experiment.outputs import describe_model

PLAIN = ModelFile(
    coterie="0.2.0",
    method={"name": "fedavg"},
    objective={"name": "supervised"},
    net={"backbone": "mlp"},
    input=InputDescription("image", (1, 16, 16), "uint8", (0.5,), (0.25,), 16),
    classes=("effusion", "normal"),
    clients=("north", "south"),
    kept=("backbone.norm.running_mean",),
)
WHOLE = replace(
    PLAIN,
    weights=SavedWeights(
        WeightsFile("model.safetensors", "ab", 29),
        WeightsFile("best.safetensors", "cd", 17, "accuracy", 0.93),
        {"north": WeightsFile("personal/north.safetensors", "ef")},
    ),
)


@pytest.mark.parametrize("written", [PLAIN, WHOLE, replace(PLAIN, classes=(3, 7), own_nets=False)])
def test_it_comes_back(written: ModelFile, tmp_path: Path) -> None:
    written.write(tmp_path)
    assert read_model_file(tmp_path) == written
    assert bool(written.weights) == (written is WHOLE)


def test_it_has_the_keys_of_the_format() -> None:
    values = json.loads(WHOLE.to_json())
    assert values["format"] == 1 and values["input"]["shape"] == [1, 16, 16]
    last = {"file": "model.safetensors", "sha256": "ab", "round": 29}
    best = {"file": "best.safetensors", "sha256": "cd", "round": 17}
    best |= {"metric": "accuracy", "value": 0.93}
    personal = {"north": {"file": "personal/north.safetensors", "sha256": "ef"}}
    assert values["weights"] == {"last": last, "best": best, "personal": personal}


def plain_values() -> dict[str, Any]:
    """The values of a file as earlier versions wrote it, without a hash of its own."""
    values: dict[str, Any] = json.loads(PLAIN.to_json())
    del values["sha256"]
    return values


def test_any_changed_value_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    text = WHOLE.to_json()
    for before, after in (('"kind": "image"', '"kind": "imagf"'), ("0.93", "0.83"), ("16", "17")):
        (tmp_path / "model.json").write_text(text.replace(before, after, 1))
        with pytest.raises(DataError, match=r"model\.json cannot be used: it was changed after"):
            read_model_file(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(json.loads(text)))  # another layout
    assert read_model_file(tmp_path) == WHOLE


def test_a_file_without_a_hash_of_its_own_is_read() -> None:
    assert ModelFile.from_json(json.dumps(plain_values())) == PLAIN


def test_keys_that_a_later_version_may_add_are_ignored() -> None:
    values = plain_values()
    values |= {"licence": "MIT", "input": {**values["input"], "unit": "mm"}}
    assert ModelFile.from_json(json.dumps(values)) == PLAIN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2 is not 1"),
        ({"format": None}, "format None is not 1"),
        ({"classes": None}, "classes = None is not a list"),
        ({"input": 3}, "3 is not a JSON object"),
        ({"input": {"kind": "image"}}, "the key 'shape' is missing"),
        ({"method": {}}, r"the key method\.name is missing"),
        ({"weights": {"last": {"file": "a"}}}, "the key 'sha256' is missing"),
    ],
)
def test_what_is_wrong_in_it_is_named(change: Any, message: str, tmp_path: Path) -> None:
    values = {**plain_values(), **change}
    (tmp_path / "model.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=rf"model\.json cannot be used: .*{message}"):
        read_model_file(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"'])
def test_what_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(DataError, match=r"model\.json cannot be used"):
        read_model_file(tmp_path)


def test_a_missing_key_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.json is missing"):
        read_model_file(tmp_path)
    values = plain_values()
    del values["clients"]
    (tmp_path / "model.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match="the key 'clients' is missing"):
        read_model_file(tmp_path)


def test_a_run_describes_its_network_without_what_depends_on_the_machine(
    toy_data: Path, tmp_path: Path
) -> None:
    net = {"norm": "bn", "bn_buffers": "local"}
    described = describe_model(toy.prepared(toy_data, tmp_path, net=net))
    assert described.method == {"name": "fedavg"} and not described.own_nets
    assert described.net["backbone"] == "mlp" and "kernel" not in described.net
    assert described.input == InputDescription("table", (toy.ENTRIES,), "float32")
    assert described.classes == (0, 1, 2) and described.clients == tuple("012345")
    assert described.kept and all("running_" in n or "num_batches" in n for n in described.kept)
