"""A run directory belongs to one process at a time; what a killed one left is cleaned."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.errors import CheckpointError, ConfigError
from coterie.engine.rundir import clean, is_used, lock_folder, next_attempt

HOLD = (
    "import sys; from pathlib import Path; from coterie.engine.rundir import lock_folder; "
    "lock = lock_folder(Path(sys.argv[1])); lock.__enter__(); print('held', flush=True); "
    "sys.stdin.read()"
)


def test_the_lock_makes_the_folder_and_names_its_holder(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with lock_folder(folder):
        assert (folder / ".lock").read_text() == (
            f"process {os.getpid()} on {socket.gethostname()}"
        )


def test_a_second_handle_is_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        holder = f"in use by process {os.getpid()} on {socket.gethostname()}; choose another --out"
        for _ in range(2):
            with pytest.raises(ConfigError, match=holder), lock_folder(tmp_path):
                raise AssertionError("the lock was given twice")
    with lock_folder(tmp_path):
        pass


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), lock_folder(tmp_path):
        raise ValueError("inside")
    with lock_folder(tmp_path):
        pass


def test_different_folders_do_not_meet(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "a"), lock_folder(tmp_path / "b"):
        pass


def test_another_process_holds_the_lock_until_it_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            with (
                pytest.raises(ConfigError, match=f"in use by process {process.pid} on"),
                lock_folder(tmp_path),
            ):
                raise AssertionError("the lock was given twice")
        finally:
            process.kill()
            process.communicate()
    with lock_folder(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    waiting = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with lock_folder(tmp_path):
        process = subprocess.Popen(
            waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False
        )
    with process:
        assert process.stdout.readline() == "up\n"
        with lock_folder(tmp_path):
            process.communicate()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(CheckpointError, match="cannot use the run directory"),
            lock_folder(folder),
        ):
            raise AssertionError("a file was taken for a folder")


def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_is_left(tmp_path: Path) -> None:
    target, folder = tmp_path / "precious", tmp_path / "run"
    folder.mkdir()
    for content in ("text", None):  # also of a file that is not there
        if content is None:
            target.unlink()
        else:
            target.write_text(content)
        (folder / ".lock").unlink(missing_ok=True)
        (folder / ".lock").symlink_to(target)
        with pytest.raises(CheckpointError, match=r"\.lock is a symbolic link"):
            lock_folder(folder).__enter__()
        assert (target.read_text() if target.exists() else None) == content
    (folder / ".lock").unlink()
    with lock_folder(folder):
        pass


@pytest.mark.parametrize("content", [b"\xff\xfe\n\n", b"x" * 5000, b"a\nb\n"])
def test_a_holder_is_named_in_one_short_line_whatever_the_lock_says(
    content: bytes, tmp_path: Path
) -> None:
    with lock_folder(tmp_path):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(ConfigError) as refused:
            lock_folder(tmp_path).__enter__()
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 1000


def test_what_stands_for_a_leftover_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spool").symlink_to(tmp_path / "precious")
    clean(tmp_path / "run")
    assert not (tmp_path / "run" / "spool").is_symlink()
    assert (tmp_path / "precious" / "file").exists()


def test_attempts_are_counted(tmp_path: Path) -> None:
    assert [next_attempt(tmp_path) for _ in range(3)] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == [".attempt"]


@pytest.mark.parametrize(
    "content",
    [
        *("", "three", "null", "[1]", "{}", "\0\0", "1e999", "-7", "9" * 12, "9" * 5000),
        *("9" * 10**6, "\u0663", "\u00b2"),
    ],
)
def test_a_damaged_count_starts_again(content: str, tmp_path: Path) -> None:
    (tmp_path / ".attempt").write_text(content)
    assert next_attempt(tmp_path) == 1
    assert next_attempt(tmp_path) == 2


def test_a_damaged_count_goes_on_behind_the_states_and_what_was_committed(tmp_path: Path) -> None:
    (tmp_path / ".attempt").write_bytes(b"\xff")
    assert next_attempt(tmp_path, committed=3) == 4
    for name in ("clients/2/000001.7", "clients/2/a.99", "clients/no/000001.99"):
        path = tmp_path / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert next_attempt(tmp_path, committed=3) == 8


def test_clean_removes_what_is_half_done_and_nothing_else(tmp_path: Path) -> None:
    keep = ["config.toml", "metrics.jsonl", "clients/3/000001.1.safetensors", "blobs/ab"]
    keep += ["checkpoints/round_000004/manifest.json", ".attempt", ".lock"]
    rest = [".attempt.17.tmp", "clients/3/000002.1.safetensors.99.tmp", "spool/method/x"]
    rest += ["evaluation/probe/3/000000.1.safetensors", "checkpoints/round_000005.tmp/state.json"]
    for name in keep + rest:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    clean(tmp_path)
    clean(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(keep)


def test_used(tmp_path: Path) -> None:
    assert not is_used(tmp_path / "missing")
    with lock_folder(tmp_path):
        next_attempt(tmp_path)
    assert not is_used(tmp_path)
    for name in ("config.toml", "metrics.jsonl", "checkpoints"):
        (tmp_path / name).mkdir()
        assert is_used(tmp_path)
        (tmp_path / name).rmdir()
