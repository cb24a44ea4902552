"""What a path names is found without opening it."""

import os
import socket
from pathlib import Path

from coterie.core.paths import ABSENT, find_problem, find_unwritable, is_file


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


def test_a_folder_can_be_made_where_it_is_not_yet(tmp_path: Path) -> None:
    assert find_unwritable(tmp_path, 300) is None
    assert find_unwritable(tmp_path / "new" / "Zürich", 300) is None
    assert find_unwritable(Path("relative"), 300) is None


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    problems = {
        tmp_path / "file": "file is a file",
        tmp_path / "file" / "below": "file is a file",
        tmp_path / "dangling": "dangling does not exist",
        tmp_path / "new" / ("n" * 256): "too long",
        tmp_path / ("d/" * 2000): "too long",
        tmp_path / os.fsdecode(b"\xff"): "no UTF-8",
        tmp_path / "a\0b": "NUL",
    }
    for path, problem in problems.items():
        assert problem in str(find_unwritable(path, 300)), path
