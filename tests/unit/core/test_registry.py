"""The directory is the registry; users' own classes come by import path."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.registry import Component, find, names, nearest
from coterie.core.settings import Local
from coterie.evaluate.accuracy import Accuracy
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import Method
from coterie.methods.fedavg import FedAvg

PACKAGE = Path(registry.__file__).parent.parent


@dataclass(frozen=True)
class Outer:
    """A component with a nested class, as users write them."""

    numbers: tuple[int, ...] = ()

    @dataclass(frozen=True)
    class Inner:
        grid: tuple[tuple[int, ...], ...] = ()
        name: str = ""


@pytest.mark.parametrize("folder", ["methods", "objectives", "evaluate"])
def test_every_file_of_a_folder_is_a_name(folder: str) -> None:
    files = {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}
    assert set(names(folder)) == files
    assert names(folder) == tuple(sorted(names(folder)))


def test_names_of_nested_folders_have_dashes() -> None:
    assert {"simple-cnn", "mlp"} <= set(names("nets/backbones"))
    assert not any("_" in name for name in names("nets/backbones"))


def test_names_are_listed_without_imports() -> None:
    code = (
        "import sys; from coterie.core.registry import names; names('methods'); "
        "sys.exit(any(name.startswith('coterie.methods') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hidden_file_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path)
    (tmp_path / "methods").mkdir()
    for name in ("__init__.py", "_private.py", "notes.txt", "mine.py"):
        (tmp_path / "methods" / name).touch()
    assert names("methods") == ("mine",)


def test_find_by_name() -> None:
    assert find("methods", "fedavg", Method, "method.name") is FedAvg
    assert find("evaluate", "accuracy", Evaluator, "evaluate.with") is Accuracy


def test_every_name_of_a_folder_is_found() -> None:
    for name in names("methods"):
        assert issubclass(find("methods", name, Method, "method.name"), Method)


def test_a_misspelt_name_shows_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"method\.name = 'fedavgg' .*did you mean 'fedavg'"):
        find("methods", "fedavgg", Method, "method.name")


@pytest.mark.parametrize("name", ["zzzz", "", "__init__", "../core/task", "fed avg"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"method\.name = .* is not known; "):
        find("methods", name, Method, "method.name")


def test_a_strange_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"it is one of: .*fedavg"):
        find("methods", "zzzz", Method, "method.name")


def test_a_module_without_the_class_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"coterie\.methods\.fedavg defines no Evaluator"):
        find("methods", "fedavg", Evaluator, "method.name")


def test_find_a_users_own_class() -> None:
    assert find("methods", "coterie.methods.fedavg:FedAvg", Method, "method.name") is FedAvg


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("__main__:Mine", "workers cannot import the main script; put the class in a module"),
        ("no.such.module:Mine", "cannot be imported: No module named"),
        ("coterie.methods.fedavg:Missing", "cannot be imported: .*has no attribute 'Missing'"),
        ("coterie.methods.fedavg:", "cannot be imported"),
        (":Mine", "cannot be imported"),
        (".fedavg:FedAvg", "cannot be imported"),
        ("coterie.core.settings:Local", "is not a Method"),
        ("coterie.core.registry:names", "is not a Method"),
    ],
)
def test_a_users_own_class_that_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"method\.name = '{name}'.*{message}"):
        find("methods", name, Method, "method.name")


def test_nearest() -> None:
    assert nearest("momentun", ["lr", "momentum"]) == "; did you mean 'momentum'?"
    assert nearest("zzz", ["lr", "momentum"]) == ""
    assert nearest("lr", []) == ""


def test_a_component_is_built_again_from_plain_data() -> None:
    local = Local(lr=0.5, schedule="step", milestones=(3, 5))
    described = Component.of(local)
    assert described.target == "coterie.core.settings:Local"
    plain = described.fields | {"milestones": [3, 5]}  # what JSON makes of a tuple
    assert Component(described.target, plain).build() == local


def test_nested_tuples_and_classes() -> None:
    inner = Outer.Inner(grid=((1, 2), (3,)), name="x")
    described = Component.of(inner)
    assert described.target.endswith(":Outer.Inner")
    fields = {"grid": [[1, 2], [3]], "name": "x"}
    assert Component(described.target, fields).build() == inner
    assert Component.of(Outer((1, 2))).build() == Outer((1, 2))
