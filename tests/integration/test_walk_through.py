"""The walk-through of CONTRIBUTING.md works: its method, oracle test and configuration."""

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
import pages
from coterie.experiment.config import resolve
from coterie.experiment.tables import CONFIGS
from pages import ROOT

Keys = dict[str, Any]


def contributed(opening: str) -> str:
    """The block of the walk-through that opens with a line."""
    found = [b.text for b in pages.blocks(ROOT / "CONTRIBUTING.md") if b.text.startswith(opening)]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the user's own modules and files that the pages speak of."""
    files = pages.saved_files()
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in files:
        sys.modules.pop(Path(file).stem, None)


@pytest.mark.slow
def test_the_method_of_the_walk_through_gives_the_same_bits_everywhere(own_modules: Path) -> None:
    digests = set()
    for kind in ("serial", "processes"):
        result = coterie.run(
            "digits/fedavg",
            out=own_modules / kind,
            run={"rounds": 2},
            local={"epochs": 1},
            method={"name": "my_methods:FedLerp"},
            executor={"kind": kind, "workers": 2},
        )
        last = result.history[-1]
        assert not last.rejected and not last.lost
        assert "train_loss_teacher" in last.metrics
        digests.add((last.digest, last.states))
    assert len(digests) == 1


@pytest.mark.slow
def test_the_method_of_the_walk_through_has_fedavg_as_its_zero(own_modules: Path) -> None:
    digests = {
        coterie.run(
            "digits/fedavg",
            out=own_modules / chosen["name"].replace(":", "-"),
            run={"rounds": 2},
            local={"epochs": 1},
            method=chosen,
            executor={"kind": "serial"},
        )
        .history[-1]
        .digest
        for chosen in ({"name": "fedavg"}, _zero())
    }
    assert len(digests) == 1


def _zero() -> Keys:
    """The zero setting that CONTRIBUTING gives for the conformance suite."""
    (text,) = re.findall(r'"fedlerp": (\{.*?\})', (ROOT / "CONTRIBUTING.md").read_text())
    return {"name": "my_methods:FedLerp", **ast.literal_eval(text)}


def test_the_oracle_of_the_walk_through_passes(own_modules: Path) -> None:
    oracle = contributed("# tests/oracles/test_fedlerp.py")
    (own_modules / "oracle.py").write_text(oracle.replace("coterie.methods.fedlerp", "my_methods"))
    found = runpy.run_path(str(own_modules / "oracle.py"))
    tests = [value for key, value in found.items() if key.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_the_configuration_of_the_walk_through_is_valid(own_modules: Path) -> None:
    tables = tomllib.loads(contributed("# coterie run digits/fedlerp"))
    fedavg = tomllib.loads((CONFIGS / "digits" / "fedavg.toml").read_text())
    assert {**tables, "method": None} == {**fedavg, "method": None}
    tables["method"]["name"] = "my_methods:FedLerp"
    assert resolve(tables).tables["method"] == tables["method"]


@pytest.mark.parametrize(
    "file", ["src/coterie/methods/fedlerp.py", "tests/oracles/test_fedlerp.py"]
)
def test_the_code_of_the_walk_through_has_the_house_style(file: str) -> None:
    ours = "lint.isort.known-first-party = ['coterie']"  # the file is not where it says it is
    for check in (["check", "--config", ours], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, "--stdin-filename", file, "-"]
        text = contributed(f"# {file}")
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
