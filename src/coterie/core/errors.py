"""Every error that Coterie raises on purpose, and the exit code each one ends a command with.

CoterieError                 one line that names the key or path, the value and the remedy
├── ConfigError        2     a key, a value, a combination; a run directory that is in use
├── DataError          3     a file that is missing, broken or of the wrong kind
├── RunFailed          4     the run cannot go on: diverged, nobody answered
│   └── NoReplies            nobody answered this round; the loop turns it into a skipped round
├── CheckpointError    5     a checkpoint or the disk under it
├── CodecError         4     bytes that are not a bundle of ours
├── Diverged           4     a loss or a weight that is not finite; ends one client's task
└── Interrupted      130     Ctrl-C or SIGTERM
"""

from typing import ClassVar


class CoterieError(Exception):
    """An error with a message for the user; anything else is a bug and keeps its traceback."""

    exit_code: ClassVar[int] = 4


class ConfigError(CoterieError):
    """The configuration cannot be run."""

    exit_code = 2


class DataError(CoterieError):
    """The data cannot be used."""

    exit_code = 3


class RunFailed(CoterieError):
    """The run stopped before its last round; it can be resumed."""

    exit_code = 4


class NoReplies(RunFailed):
    """A reduction was asked for over no valid reply."""


class CheckpointError(CoterieError):
    """A checkpoint, or the disk that holds it, failed."""

    exit_code = 5


class CodecError(CoterieError):
    """Bytes that do not decode to a bundle."""


class Diverged(CoterieError):
    """A client's loss, state or upload is not finite."""


class Interrupted(CoterieError):
    """The user or the system asked the run to stop."""

    exit_code = 130
