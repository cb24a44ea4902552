"""Three short rounds of every configuration for the digits, compared with what they once gave.

A golden must hold on any processor and still notice a hyper-parameter that changed by a hundredth.
Processors round differently and training multiplies that, so a client takes few steps: the spread
over vector widths and kernels is below a tenth of the tolerance. After a change that is meant to
move the numbers: python tests/golden/test_golden.py --write
"""

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import coterie
from coterie.core import registry
from coterie.experiment.config import Config, resolve
from coterie.experiment.tables import CONFIGS, parse_overrides, read, shipped

FOLDER = Path(__file__).parent
WRITE = "python tests/golden/test_golden.py --write"
NAMES = tuple(name for name in shipped() if name.startswith("digits/"))
PREFIXES = ("train_", "server_")
KEPT = ("loss", "client_loss_mean", "accuracy", "knn")
TOLERANCE = {"rel": 1e-4, "abs": 1e-5}
TWO_SAMPLES = {"rel": 0.0, "abs": 2.5 / 360}  # of the test set: some lie on a boundary

SMALLER = (
    *("run.rounds=3", "run.device=cpu", "data.limit=300", "partition.clients=3"),
    *("local.steps=4", "executor.kind=serial", "evaluate.last=[]"),
)
# norms over batches multiply rounding, so with labels, where nothing needs them, there are none
LABELLED = ("net.backbone=mlp", "net.norm=none", "local.steps=10")
# so that what a method adds is seen after few steps, and no single step is a leap
MORE: dict[str, tuple[str, ...]] = {
    "digits/bilevel_ssfl": ("method.lam=10.0",),
    "digits/fedadagrad": ("local.steps=6", "server.lr=0.01"),
    "digits/fedprox": ("method.mu=1.0",),
    "digits/fedsimclr": ("method.mu=1.0", "local.steps=3"),
    "digits/fedssc": ("method.hold=1",),
    "digits/fedswav": ("method.mu=1.0",),
    "digits/mfcl": (
        *("run.rounds=2", "method.sense_rounds=2", "method.sensor_width=8"),
        "method.server_batch=150",
    ),
    "digits/moon": ("net.backbone=simple-cnn", "data.limit=0"),
    "digits/orchestra": ("method.server_steps=50",),
}


def spoken(name: str) -> tuple[str, ...]:
    """What the command in a configuration's first line sets, such as the leave to share."""
    first = (CONFIGS / f"{name}.toml").read_text().splitlines()[0]
    return tuple(word for word in first.partition("(")[0].split() if "=" in word)


def twin(name: str) -> Config:
    """The configuration with few clients, samples and steps."""
    tables = read(CONFIGS / f"{name}.toml")
    labelled = LABELLED if tables["objective"]["name"] == "supervised" else ()
    changes = (*spoken(name), *SMALLER, *labelled, *MORE.get(name, ()))
    last = {word.partition("=")[0]: word for word in changes}
    return resolve(tables, parse_overrides(last.values()), name)


def measure(config: Config, folder: Path) -> list[dict[str, float]]:
    """The metrics of each round, and how far personal models are from the global one."""
    history = coterie.run(config.tables, out=folder).history
    rounds = [
        {k: value for k, value in event.metrics.items() if k.startswith(PREFIXES) or k in KEPT}
        for event in history
    ]
    model, personal = folder / "model.safetensors", sorted(folder.glob("personal/*.safetensors"))
    if model.exists() and personal:
        distances = [distance(model, path) for path in personal]
        rounds[-1]["personal_distance"] = sum(distances) / len(distances)
    return rounds


def distance(one: Path, other: Path) -> float:
    """The Euclidean distance of two networks' weights."""
    weights, others = load_file(one), load_file(other)
    shared = [name for name in weights.keys() & others.keys() if weights[name].is_floating_point()]
    gaps = ((weights[name].double() - others[name].double()).square().sum() for name in shared)
    return math.sqrt(math.fsum(map(float, gaps)))


def differences(found: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """The metrics that are not what they were; those that are new do not count."""
    wrong = []
    for key, value in expected.items():
        tolerance = TWO_SAMPLES if key in ("accuracy", "knn") else TOLERANCE
        if found.get(key) != pytest.approx(value, **tolerance):
            wrong.append(f"{key} = {found.get(key)}, was {value}")
    return wrong


def place(name: str) -> Path:
    return FOLDER / f"{name.removeprefix('digits/')}.json"


def write() -> None:
    """Replace the golden files by what the configurations give now."""
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            rounds = measure(twin(name), Path(folder) / "run")
        place(name).write_text(json.dumps(rounds, indent=1) + "\n")
        print(place(name))


def golden(name: str) -> list[dict[str, Any]]:
    if not place(name).is_file():
        pytest.fail(f"{place(name)} is missing; write it with: {WRITE}")
    rounds: list[dict[str, Any]] = json.loads(place(name).read_text())
    return rounds


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    rounds = zip(measure(twin(name), tmp_path / "run"), golden(name), strict=True)
    wrong = {number: differences(*pair) for number, pair in enumerate(rounds)}
    assert not any(wrong.values()), f"{wrong}; if this is meant: {WRITE}"


def test_every_method_and_objective_has_a_golden_and_no_file_is_left_over() -> None:
    configs = [twin(name).tables for name in NAMES]
    for folder, table in (("methods", "method"), ("objectives", "objective")):
        assert set(registry.names(folder)) == {config[table]["name"] for config in configs}
    assert {path.name for path in FOLDER.glob("*.json")} <= {place(name).name for name in NAMES}


def test_every_shipped_configuration_is_valid_as_its_command_says() -> None:
    for name in shipped():
        resolve(read(CONFIGS / f"{name}.toml"), parse_overrides(spoken(name)), name)


def test_a_missing_golden_file_says_how_to_write_it() -> None:
    with pytest.raises(pytest.fail.Exception, match="--write"):
        golden("digits/nobody")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {WRITE}")
    write()
