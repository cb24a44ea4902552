"""Three rounds of every shipped configuration's tiny twin, compared with what they once gave.

Losses and accuracies agree to 1e-4 relative: another processor rounds otherwise. After a change
that is meant to move them: python tests/golden/test_golden.py --write
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.experiment.config import Config, resolve
from coterie.experiment.tables import CONFIGS, parse_overrides, shipped
from coterie.experiment.tables import read as read_tables

FOLDER = Path(__file__).parent
WRITE = "python tests/golden/test_golden.py --write"
TOLERANCE = 1e-4
KEPT = ("train_loss", "server_loss", "accuracy", "client_accuracy_mean", "knn", "client_knn_mean")


def spoken(name: str) -> dict[str, dict[str, Any]]:
    """What the command in a configuration's first line sets, such as the leave to share."""
    first = (CONFIGS / f"{name}.toml").read_text().splitlines()[0]
    command = first.partition("(")[0].split()
    return parse_overrides(word for word in command if "=" in word)


def twin(name: str) -> Config:
    """The same configuration over three rounds of one epoch of the digits, for three clients."""
    smaller: dict[str, dict[str, Any]] = {
        "run": {"rounds": 3, "device": "cpu"},
        "data": {"name": "digits", "root": ""},
        "partition": {"clients": 3},  # large shards: three rounds are enough to learn
        "local": {"epochs": 1, "steps": 0},
        "executor": {"kind": "serial"},
        "evaluate": {"every": 1, "stop_at_target": False},
    }
    if not name.startswith("digits/"):  # their rates are made for many steps a round
        smaller["local"]["batch_size"] = 8
    tables = read_tables(CONFIGS / f"{name}.toml")
    if tables["objective"]["name"] != "supervised":  # two views and wide heads: less of everything
        smaller["data"] |= {"limit": 300, "resize": 0}
        smaller["net"] = {"backbone": "simple-cnn", "projection": 32, "stem": "cifar"}
        smaller["net"]["kernel"] = "torch"  # norms over batches multiply another kernel's rounding
        smaller["partition"]["kind"] = "dirichlet"
        smaller["cohort"] = {"fraction": 1.0}
    for table, values in spoken(name).items():
        smaller[table] = {**values, **smaller.get(table, {})}
    if tables["method"]["name"] == "mfcl":
        smaller["method"] |= {"sense_rounds": 2, "sensor_width": 8, "server_batch": 50}
    return resolve(tables, smaller, name)


def measure(name: str, folder: Path) -> list[dict[str, float]]:
    history = coterie.run(twin(name).tables, out=folder).history
    return [{key: event.metrics[key] for key in KEPT if key in event.metrics} for event in history]


def place(name: str) -> Path:
    return FOLDER / f"{name.replace('/', '-')}.json"


def write() -> None:
    """Put what the twins give now in the place of what they gave."""
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name in shipped():
        with tempfile.TemporaryDirectory() as folder:
            rounds = measure(name, Path(folder) / "run")
        place(name).write_text(json.dumps(rounds, indent=1) + "\n")
        print(place(name))


def read(name: str) -> list[dict[str, Any]]:
    if not place(name).is_file():
        pytest.fail(f"{place(name)} is missing; write it with: {WRITE}")
    found: list[dict[str, Any]] = json.loads(place(name).read_text())
    return found


@pytest.mark.parametrize("name", shipped())
def test_the_tiny_twin_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    expected = read(name)
    found = measure(name, tmp_path / "run")
    assert len(found) == len(expected)
    assert all(found)
    for now, before in zip(found, expected, strict=True):
        assert now == pytest.approx(before, rel=TOLERANCE), f"if this is meant: {WRITE}"


def test_there_is_no_golden_file_too_many() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} <= {place(n).name for n in shipped()}


def test_a_missing_golden_file_says_how_to_write_it() -> None:
    with pytest.raises(pytest.fail.Exception, match="--write"):
        read("digits/nobody")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {WRITE}")
    write()
