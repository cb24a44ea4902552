"""What a path names is found without opening it."""

import os
import socket
from pathlib import Path

from coterie.core.paths import ABSENT, find_problem, is_file


def test_a_regular_file_has_no_problem_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert find_problem(tmp_path / "file") is None
    assert is_file(tmp_path / "link")


def test_all_else_is_called_by_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        assert find_problem(tmp_path / "socket") == "is a socket"
    assert find_problem(tmp_path) == "is a folder"
    assert find_problem(tmp_path / "pipe") == "is a pipe"
    assert find_problem(tmp_path / "zeros") == "is a device"
    assert find_problem(tmp_path / "none") == ABSENT
    assert find_problem(tmp_path / "pipe" / "below") == ABSENT
    assert find_problem(Path("a\0b")) == ABSENT
    assert str(find_problem(tmp_path / "loop")).startswith("cannot be read (")
    assert not is_file(tmp_path / "pipe")


def test_a_path_may_be_too_long_to_be_asked_for() -> None:
    for path in (Path("a" * 300), Path("/a" * 4096)):
        assert find_problem(path) == "is too long for a path"
