"""The layer under all changes of files: nothing bypasses it, and its errors are one line."""

import ast
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core import files
from coterie.core.bundle import Blob
from coterie.core.errors import CheckpointError
from coterie.core.task import Attempt
from coterie.engine.client_states import StateStore
from coterie.engine.rundir import lock_folder
from faulty_disk import OPERATIONS

LAYERED = ("core", "data", "engine", "experiment")
CHANGES = {"mkdir", "unlink", "write_bytes", "write_text", "touch", "rmdir", "hardlink_to"}
CHANGES |= {"rmtree", "fsync", "symlink_to", "rename", "renames", "makedirs", "removedirs"}
CHANGES |= {"posix_fallocate", "ftruncate", "mkdtemp", "mkstemp", "TemporaryDirectory", "tofile"}
CHANGES |= {"NamedTemporaryFile", "TemporaryFile", "copyfile", "copytree", "save_file"}
BYPASSES = {  # and why
    "evaluate.py: TemporaryDirectory": "in the system's folder: nothing of a run or cache is there",
}


def bypasses(path: Path) -> Iterator[str]:
    """Find calls that change files other than through `coterie.core.files`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        name, _, owner = (part[::-1] for part in ast.unparse(node.func)[::-1].partition("."))
        if owner in ("files", "disk"):
            continue
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        modes = [a.value for a in given if isinstance(a, ast.Constant)]
        opens = name in ("open", "fdopen", "memmap", "open_memmap")
        writes = opens and any(str(mode)[:1] in set("wax") for mode in modes)
        writes |= name == "open" and any("+" in str(mode) for mode in modes)
        # Path.replace takes one argument, str.replace two
        moves = name == "replace" and len(node.args) == 1 and not node.keywords
        if name in CHANGES or writes or (moves and owner != "dataclasses"):
            yield f"{path.name}: {ast.unparse(node.func)}"


def test_every_change_of_a_file_goes_through_the_layer() -> None:
    package = Path(coterie.__file__).parent
    paths = [path for room in LAYERED for path in (package / room).rglob("*.py")]
    found = [one for path in paths if path.name != "files.py" for one in bypasses(path)]
    assert set(found) == set(BYPASSES)


def test_the_layer_is_all_that_changes_files_in_its_own_module() -> None:
    """The atomic writes of the second half are made of the operations of the first."""
    tree = ast.parse(Path(files.__file__).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    first = set(OPERATIONS)
    assert first < {function.name for function in functions}
    for function in functions:
        calls = {
            ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)
        }
        changes = {call for call in calls if "." in call and call.split(".")[-1] in CHANGES}
        assert not changes or function.name in first, function.name


def fail(*_: Any, **__: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_full_disk_under_an_uploaded_array_is_no_fault_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    expected = r"cannot write .*/b: No space left on device \(24 bytes needed\)"
    with pytest.raises(CheckpointError, match=expected):
        Blob.write(tmp_path / "b", [np.arange(3.0)])


def test_an_error_of_the_rows_of_an_array_stays_what_it_is(tmp_path: Path) -> None:
    def rows() -> Iterator[np.ndarray]:
        yield np.arange(3.0)
        raise PermissionError("a client's own file")

    with pytest.raises(PermissionError, match="own file"):
        Blob.write(tmp_path / "b", rows())


def test_old_states_that_cannot_be_removed_are_no_fault_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore(tmp_path)
    old = tmp_path / "0" / "000000.1.safetensors"
    old.parent.mkdir()
    old.touch()
    monkeypatch.setattr(files, "remove_file", fail)
    with pytest.raises(CheckpointError, match=f"cannot write {old}: Input/output error"):
        store.begin(Attempt(2, first=0))


def test_a_lock_that_cannot_be_signed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "write", fail)
    with (
        pytest.raises(CheckpointError, match=r"cannot write .*\.lock: Input/output error"),
        lock_folder(tmp_path),
    ):
        pass


def test_the_first_bytes_of_a_file_are_copied_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, written = tmp_path / "source", tmp_path / "target", list[int]()
    source.write_bytes(bytes(range(100)))
    write = files.write
    monkeypatch.setattr(files, "_CHUNK", 32)
    monkeypatch.setattr(
        files, "write", lambda file, data: written.append(write(file, data) or len(data))
    )
    files.copy_durably(source, target, 70)
    assert target.read_bytes() == bytes(range(70)) and written == [32, 32, 6]
    with pytest.raises(CheckpointError, match=r"cannot read .*missing"):
        files.copy_durably(tmp_path / "missing", target, 1)
