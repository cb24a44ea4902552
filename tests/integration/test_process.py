"""The process of a command: its output may go away, signals may come at any time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import toy
from coterie.experiment.config import resolve

# a package that is interrupted while it is imported, and makes another error of it
RUDE = """
import os, signal
try:
    os.kill(os.getpid(), signal.{signal})
    for _ in range(1000): pass
except BaseException:
    raise ImportError("it has no part of that name")
"""
LAST = """
import atexit, os, signal, sys
atexit.register(lambda: [os.kill(os.getpid(), n) for n in (signal.SIGINT, signal.SIGTERM)])
sys.argv = ["coterie", {arguments}]
from coterie.__main__ import start
start()
"""


@pytest.fixture(scope="module")
def config(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "toy.toml"
    path.write_text(resolve(toy.tables(toy_data, run={"rounds": 2})).to_toml())
    return str(path)


def call(
    *arguments: str, output: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with its output as the shell has it."""
    command = ["sh", "-c", f'exec "$@" {output}', "sh", sys.executable, "-m", "coterie", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def call_without_reader(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output nobody reads, as behind `| head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "coterie", *arguments]
    with os.fdopen(writer, "w") as output:
        return subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=240
        )


def test_a_list_that_nobody_reads_ends_with_its_own_code() -> None:
    done = call_without_reader("list")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_under_the_output_is_one_line() -> None:
    done = call("list", output=">/dev/full")
    assert done.returncode == 5
    assert done.stderr == (
        "coterie: the output cannot be written: No space left on device; all else is done\n"
    )


def test_an_error_keeps_its_code_where_it_cannot_be_printed() -> None:
    assert call("run", "local.lr=fast", output=">/dev/full 2>/dev/full").returncode == 2
    assert call("run", "local.lr=fast", output=">&- 2>&- <&-").returncode == 2


def test_a_run_is_finished_though_its_output_is_closed(config: str, tmp_path: Path) -> None:
    done = call("run", config, "--out", "run", output=">&-", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_run_is_finished_though_the_disk_of_its_output_is_full(
    config: str, tmp_path: Path
) -> None:
    done = call("run", config, "--out", "run", output=">/dev/full", folder=tmp_path)
    assert done.returncode == 5
    assert done.stderr == (
        "coterie: the output cannot be written: No space left on device; all else is done\n"
    )
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_run_is_finished_though_nobody_reads_its_output(config: str, tmp_path: Path) -> None:
    done = call_without_reader("run", config, "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (141, "")
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("package", ["typer", "numpy", "torch"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_the_start_is_a_quiet_end(package: str, name: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(RUDE.format(signal=name))
    path = os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])))
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "run", "digits/fedavg", "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "coterie: interrupted\n")
    assert not (tmp_path / "run").exists()


def call_until_signalled(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose process gets SIGINT and SIGTERM while it exits."""
    script = LAST.format(arguments=", ".join(map(repr, arguments)))
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240
    )


def test_a_signal_after_the_end_changes_nothing() -> None:
    done = call_until_signalled("list", "methods")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fedavg" in done.stdout.splitlines()


@pytest.mark.slow
def test_a_signal_while_a_finished_run_exits_changes_nothing(config: str, tmp_path: Path) -> None:
    workers = ("executor.kind=processes", "executor.workers=1")
    done = call_until_signalled("run", config, *workers, "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "report.html").is_file()
    call("run", config, "--out", str(tmp_path / "whole"))
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "whole")
    assert toy.outputs(tmp_path / "run") == toy.outputs(tmp_path / "whole")


def test_the_installed_program_is_the_module() -> None:
    scripts = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'coterie = "coterie.__main__:start"' in scripts
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # importing it changes nothing
