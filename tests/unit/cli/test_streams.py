"""A stream that cannot be written drops what is written, and says why at the end."""

import errno
import io
import os
from pathlib import Path

import pytest

from coterie.cli import streams
from coterie.cli.streams import LastingFile


def test_what_can_be_written_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb", buffering=0) as raw:
        file = LastingFile(raw)
        assert file.write(b"some text") == 9 and file.fileno() == raw.fileno()
    assert path.read_bytes() == b"some text" and file.error is None


def test_the_first_error_is_kept_and_the_rest_dropped() -> None:
    with io.FileIO("/dev/full", "w") as raw:
        file = LastingFile(raw)
        assert file.write(b"a") == 1 and file.write(b"bc") == 2
    assert file.error is not None and file.error.errno == errno.ENOSPC


def test_a_descriptor_that_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with io.FileIO(writer, "w") as raw, io.FileIO(reader) as other:
        while raw.write(bytes(65_536)) is not None:
            pass
        assert other.read(65_536)
        assert LastingFile(raw).write(b"more") == 4


@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [(errno.EPIPE, 0, 141), (errno.ENOSPC, 0, 5), (errno.EPIPE, 2, 2), (errno.ENOSPC, 4, 4)],
)
def test_a_lost_output_is_an_exit_code_unless_there_is_another(
    number: int, code: int, expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as raw:
        file = LastingFile(raw)
        assert streams.finish(file, code) == code
        file.error = OSError(number, os.strerror(number))
        assert streams.finish(file, code) == expected
    said = capsys.readouterr().err
    assert ("the output cannot be written: No space left" in said) == (expected == 5)
