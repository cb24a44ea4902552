"""Small versions of what `make endurance` does at length: a soak, a full disk, signals."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import site_processes
import toy
from coterie.core.errors import CheckpointError
from faulty_disk import in_child

ENDURANCE = Path(__file__).parent.parent / "endurance"
sys.path.insert(0, str(ENDURANCE))

import bench  # noqa: E402

bench.find_modules()

import disk  # noqa: E402
import fleet  # noqa: E402
import kills  # noqa: E402
import warm  # noqa: E402

NEW_NAME_SPACE = 0x00020000  # CLONE_NEWNS: nobody else sees what is mounted
SERIAL: dict[str, Any] = {"method": {"name": "toy_methods:TwoModels"}, "run": {"rounds": 10}}


@pytest.mark.slow
def test_a_run_with_all_faults_at_once_has_the_bits_of_one_without_kills() -> None:
    command = [sys.executable, str(ENDURANCE / "soak.py"), "--rounds", "6", "--clients", "20"]
    ended = subprocess.run(command, text=True, capture_output=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-2000:]
    assert "1 of 1 equal after 6 rounds" in ended.stdout
    assert re.search(r"^[1-9]\d* kills, ", ended.stdout, re.M)


def test_a_disk_that_is_really_full_loses_nothing(toy_data: Path, tmp_path: Path) -> None:
    """A file system in memory, too small for the run and then enlarged."""
    place, tables = tmp_path / "disk", disk.settings(tmp_path / "orders")
    place.mkdir()
    toy.run(toy_data, tmp_path / "whole", **tables)
    unpermitted = 77

    def work() -> None:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
        if ctypes.CDLL(None).unshare(NEW_NAME_SPACE) or any(
            subprocess.run(words, capture_output=True).returncode
            for words in (["mount", "--make-rprivate", "/"], mount)
        ):
            os._exit(unpermitted)
        out = place / "run"
        with pytest.raises(CheckpointError, match="No space left on device"):
            toy.run(toy_data, out, **tables)
        assert not list(out.rglob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        toy.run(toy_data, out, resume=True, **tables)
        assert disk.remains(out) == disk.remains(tmp_path / "whole")

    status = in_child(work)
    if status == unpermitted:
        pytest.skip("a file system can be mounted by root only")
    assert status == 0


@pytest.fixture(scope="module")
def left_alone(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no signal came to."""
    out = tmp_path_factory.mktemp("alone") / "run"
    toy.run(toy_data, out, **SERIAL)
    return out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_in_one_process_with_130_and_a_way_back(
    number: signal.Signals,
    left_alone: Path,
    toy_data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    config = kills.write_tables(tmp_path, "serial", toy.tables(toy_data, **SERIAL))
    process = warm.start(["run", str(config), "--out", str(out)], tmp_path / "run.log")
    while kills.count_rounds(out) < 2:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(number)
    assert process.wait() == 130
    again = f"coterie run --out {out} --resume"
    assert capfd.readouterr().err == f"coterie: interrupted; resume with: {again}\n"
    assert len(toy.trace(out)) < len(toy.trace(left_alone))
    toy.run(toy_data, out, resume=True, **SERIAL)
    assert kills.equal(out, left_alone)


def test_a_signal_ends_a_deployed_server_and_client_with_130(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """While the server waits for a second client; `make endurance` does it amid rounds."""
    root, port = fleet.write_sites(tmp_path / "sites"), str(site_processes.find_port())
    tables = fleet.tables("", run={"rounds": 2, "seed": 5})
    config = kills.write_tables(tmp_path, "sites", {**tables, "data": {"name": "sites"}})
    said = ""

    def wait_until(words: str, process: warm.Process) -> None:
        nonlocal said
        while words not in said:
            assert process.poll() is None, said
            time.sleep(0.01)
            said += "".join(capfd.readouterr())

    serving = ["server", str(config), "--out", str(tmp_path / "run"), "--clients", "2"]
    server = warm.start(["deploy", *serving, "--port", port, "--insecure"], tmp_path / "server.log")
    wait_until("listening on ", server)
    address, data = f"127.0.0.1:{port}", str(root / "amiens.npz")
    working = ["client", "--server", address, "--data", data, "--folder", str(tmp_path / "site")]
    client = warm.start(["deploy", *working, "--insecure"], tmp_path / "client.log")
    wait_until("client 'amiens' has joined", client)
    for process, number in ((client, signal.SIGINT), (server, signal.SIGTERM)):
        process.send_signal(number)
        assert process.wait() == 130
    said += "".join(capfd.readouterr())
    assert "coterie: interrupted; the same command continues\n" in said
    assert f"coterie deploy server --out {tmp_path / 'run'} --resume" in said
    assert "Traceback" not in said
