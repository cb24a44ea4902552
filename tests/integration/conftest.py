"""What tests of whole runs share: a finished run, a copy of it, the command, and a browser."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import toy
from browser import Browser
from coterie.cli.main import main
from coterie.experiment.config import resolve
from resuming import STATEFUL, Reference, Run


@pytest.fixture(scope="session")
def reference(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A run of four rounds, committed after the second and the last, and its configuration."""
    folder = tmp_path_factory.mktemp("reference")
    config = folder / "mine.toml"
    config.write_text(resolve(toy.tables(toy_data, **STATEFUL)).to_toml())
    toy.run(toy_data, folder / "run", **STATEFUL)
    return folder / "run", str(config)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser, started once for the tests of a file."""
    opened = Browser()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def copy(reference: Reference, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(reference[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`coterie run ...`: what it printed, or the one line it failed with."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["run", *map(str, arguments)])
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        if code:
            assert said.err.startswith("coterie: ") and said.err.count("\n") == 1
        return said.err if code else said.out

    return call


@pytest.fixture
def handlers() -> Iterator[None]:
    """The program takes over two signals; tests take them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
