"""Arguments and options that several commands have."""

from typing import Annotated

import typer

_HELP = "A configuration (a path or a name of `coterie list configs`), then table.key=value."
Changes = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG] [KEY=VALUE]...", help=_HELP)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
