"""Standard streams that never end a command: what they cannot write is dropped, and remembered."""

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

_BROKEN_PIPE, _DISK = 141, 5  # exit codes
_DESCRIPTORS = 3  # input, output, errors


class LastingFile(io.RawIOBase):
    """A file whose first error is kept instead of raised; after it, nothing more is written."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._file.isatty()

    def write(self, data: Any) -> int:
        """Write data; claim to have done so if it cannot be done."""
        try:
            while self.error is None:
                written = self._file.write(data)
                if written is not None:
                    return written
                select.select([], [self._file], [])  # a descriptor that does not block
        except OSError as error:
            self.error = error
        return len(data)


def protect() -> LastingFile:
    """Replace standard output and errors by lasting ones; return the file of the output.

    Descriptors that the caller closed are opened, so that no file of a run gets their numbers.
    """
    for descriptor in range(_DESCRIPTORS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    output, errors = (_open(stream) for stream in (sys.stdout, sys.stderr))
    sys.stdout = _wrap(output, sys.stdout)
    sys.stderr = _wrap(errors, sys.stderr)
    return output


def finish(output: LastingFile, code: int) -> int:
    """Flush the output; return the exit code of a command, whose output may have been lost."""
    sys.stdout.flush()
    if output.error is None or code:
        return code
    if output.error.errno == errno.EPIPE:
        return _BROKEN_PIPE
    reason = output.error.strerror or output.error
    print(f"coterie: the output cannot be written: {reason}; all else is done", file=sys.stderr)
    return _DISK


def _open(stream: TextIO | None) -> LastingFile:
    """Open the descriptor of a stream again; nothing, if Python found it closed."""
    if stream is None:
        return LastingFile(io.FileIO(os.devnull, "w"))
    stream.flush()
    return LastingFile(io.FileIO(stream.fileno(), "w", closefd=False))


def _wrap(file: LastingFile, stream: TextIO | None) -> TextIO:
    """Make text of a file, with the encoding of a stream; what that lacks is escaped."""
    encoding, kept = "utf-8", "strict"
    if stream is not None:
        encoding, kept = stream.encoding, stream.errors or kept
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding,
        "backslashreplace" if kept == "strict" else kept,
        line_buffering=stream is sys.stderr or file.isatty(),
    )
