"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from coterie.core.errors import ConfigError

_HELP = "A configuration (a path or a name of `coterie list configs`), then table.key=value."


def complete_config(incomplete: str) -> list[str]:
    """List the shipped configurations that begin so, for the completion of a shell."""
    from coterie.experiment.tables import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


_CONFIG = typer.Argument(
    metavar="[CONFIG] [KEY=VALUE]...", help=_HELP, autocompletion=complete_config
)
Changes = Annotated[list[str] | None, _CONFIG]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_CLIENT = "The name of a client, whose own model is used. Default: the global model."
_DATA = "A folder of images, or a file .npz, .npy or .csv."
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help=_DATA)]
Client = Annotated[str | None, typer.Option(metavar="ID", help=_CLIENT)]
Which = Annotated[str, typer.Option(help="The model of the last or of the best round.")]


def check_which(which: str) -> Literal["last", "best"]:
    """Check the value of `--which`."""
    if which not in ("last", "best"):
        raise ConfigError(f"--which {which} must be last or best")
    return cast(Literal["last", "best"], which)
