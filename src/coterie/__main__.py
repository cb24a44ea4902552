"""`python -m coterie` is `coterie`: signals and streams first, then what takes time to import."""

import contextlib
import sys
from typing import NoReturn

from coterie.core import interrupts


def start() -> NoReturn:
    """Run a command in a process of its own, and exit with its code."""
    code = interrupts.INTERRUPTED
    with contextlib.suppress(KeyboardInterrupt):  # outside the command; there is no second one
        try:
            interrupts.install()
            from coterie.cli import streams

            output = streams.protect()
            from coterie.cli.main import call

            code = streams.finish(output, call(sys.argv[1:]))
        finally:
            interrupts.ignore()
    sys.exit(code)


if __name__ == "__main__":
    start()
