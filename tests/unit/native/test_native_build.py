"""Building the kernels: whole or not at all, with a reason that is kept."""

import json
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


def test_a_compiler_that_writes_nothing_is_a_reason(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kernels.so", "kernels.json"):
        (elsewhere / name).write_bytes(b"of another time")
    monkeypatch.setenv("CC", f"{sys.executable} -c pass")
    assert not build_or_explain()
    said = (elsewhere / "kernels.txt").read_text()
    assert said == f"{sys.executable} succeeded, but wrote no dispatch.o\n"
    assert not (elsewhere / "kernels.so").exists() and not (elsewhere / "kernels.json").exists()


def test_a_compiler_that_cannot_be_run_is_a_reason(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "broken").write_bytes(b"\x7fELF")
    (elsewhere / "broken").chmod(0o755)
    monkeypatch.setenv("CC", str(elsewhere / "broken"))
    assert not build_or_explain()
    assert "broken cannot be run: " in (elsewhere / "kernels.txt").read_text()


def test_a_library_is_built_with_its_symbols_and_a_record(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretend(text: str) -> None:
        write = f"import sys; open(sys.argv[sys.argv.index('-o') + 1], 'w').write({text!r})"
        (elsewhere / "cc.py").write_text(write)

    monkeypatch.setenv("CC", f"{sys.executable} -IS {elsewhere / 'cc.py'}")
    pretend("nothing that could be called")
    assert not build_or_explain()
    assert "a library without the symbol coterie_sources" in (elsewhere / "kernels.txt").read_text()
    variants = {**module._X86, **module._OTHERS}
    names = ["coterie_sources", "coterie_variants", *(f"turn_f32_{name}" for name in variants)]
    pretend(" ".join(names))
    assert build_or_explain()
    made = (elsewhere / "kernels.so").read_bytes()
    assert made.decode() == " ".join(names)
    assert json.loads((elsewhere / "kernels.json").read_bytes()) == module.describe(made)


def test_a_build_takes_the_reason_away(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "kernels.txt").write_text("once there was no compiler\n")
    monkeypatch.setattr(module, "build", lambda library: library.write_bytes(b"new"))
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
