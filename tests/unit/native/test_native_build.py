"""Building the kernels: whole or not at all, with a reason that is kept."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.native import build as module
from coterie.native.build import CannotBuild, build_or_explain, compiler, fingerprint


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sources in which nothing was built."""
    for source in (*module.FOLDER.glob("*.c"), *module.FOLDER.glob("*.h")):
        shutil.copy(source, tmp_path)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setattr(module, "REASON", tmp_path / "kernels.txt")
    return tmp_path


def test_without_a_compiler_a_reason_is_left(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "kernels.so").write_bytes(b"of another time")
    monkeypatch.setenv("CC", "/nonexistent")
    assert not build_or_explain()
    assert (elsewhere / "kernels.txt").read_text() == "CC = /nonexistent is not there\n"
    assert not (elsewhere / "kernels.so").exists()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(elsewhere))
    assert not build_or_explain()
    assert (elsewhere / "kernels.txt").read_text() == "there is no C compiler\n"


def test_a_source_that_does_not_compile_is_a_reason(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("CC", "cc")
    (elsewhere / "dispatch.c").write_text("this is not C\n")
    assert not build_or_explain()
    (line,) = (elsewhere / "kernels.txt").read_text().splitlines()
    assert line.startswith("cc failed: ") and "error" in line
    assert not (elsewhere / "kernels.so").exists()


def test_a_compiler_that_fails_silently_is_a_reason(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -c raise(SystemExit(3))")
    assert compiler()[0] == sys.executable
    assert not build_or_explain()
    assert "exit status 3" in (elsewhere / "kernels.txt").read_text()


def test_a_build_takes_the_reason_away(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "kernels.txt").write_text("once there was no compiler\n")
    monkeypatch.setattr(module, "build", lambda: (elsewhere / "kernels.so").write_bytes(b"new"))
    assert build_or_explain()
    assert sorted(path.name for path in elsewhere.glob("kernels.*")) == ["kernels.c", "kernels.so"]


def test_the_fingerprint_is_of_all_sources(elsewhere: Path) -> None:
    first = fingerprint()
    assert len(first) == 16 and fingerprint() == first
    for source in (*elsewhere.glob("*.c"), *elsewhere.glob("*.h")):
        text = source.read_text()
        source.write_text(f"{text}\n")
        assert fingerprint() != first
        source.write_text(text)
    assert fingerprint() == first


@pytest.mark.slow
def test_a_whole_build_can_be_loaded(elsewhere: Path) -> None:
    from coterie.native.library import Library, variants

    try:
        module.build(elsewhere / "kernels.so", ["-O1"])
    except CannotBuild as error:
        pytest.skip(str(error))
    for name in variants(elsewhere / "kernels.so"):
        Library(elsewhere / "kernels.so", name)
    assert not list(elsewhere.glob(".kernels*"))


def test_the_command_says_why_it_cannot_build() -> None:
    done = subprocess.run(
        [sys.executable, module.__file__],
        capture_output=True,
        text=True,
        env={"CC": "/nonexistent"},
    )
    assert done.returncode == 1
    assert done.stderr == "no kernels: CC = /nonexistent is not there\n"
