"""Every error that Coterie raises on purpose, and the exit code each one ends a command with.

CoterieError                 one line with the key or path, the value and the remedy
├── ConfigError        2     a wrong key, value or combination; a run directory in use
├── DataError          3     a file that is missing, damaged or of the wrong kind
├── RunFailed          4     the run cannot continue: it diverged, or no client answered
│   └── NoReplies            no client answered in this round, which is then skipped
├── CheckpointError    5     a damaged checkpoint, or a disk that cannot be written
├── CodecError         4     a message or bundle that is damaged, too large or not as expected
├── Diverged           4     a loss or weight that is not finite; ends one client's task
└── Interrupted      130     Ctrl-C or SIGTERM
"""

from typing import ClassVar

from coterie.core.formatting import one_line


class CoterieError(Exception):
    """An error with a message for the user; anything else is a bug and keeps its traceback."""

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class ConfigError(CoterieError):
    """The configuration cannot be run."""

    exit_code = 2


class DataError(CoterieError):
    """The data cannot be used."""

    exit_code = 3


class RunFailed(CoterieError):
    """The run stopped before its last round; it can be resumed."""


class NoReplies(RunFailed):
    """There is no valid reply to reduce over."""


class CheckpointError(CoterieError):
    """A checkpoint is damaged, or its disk cannot be written."""

    exit_code = 5


class CodecError(CoterieError):
    """Bytes that are not the message or bundle that they should be."""


class Diverged(CoterieError):
    """A client's loss, state or upload is not finite."""


class Interrupted(CoterieError):
    """The user or the system asked the run to stop."""

    exit_code = 130
