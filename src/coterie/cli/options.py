"""Arguments and options that several commands have."""

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from typer.core import TyperCommand
from typer.utils import get_params_from_function

from coterie.core import paths
from coterie.core.errors import ConfigError
from coterie.core.formatting import quote

_LAST_PORT = 65_535
_ROOM = 600  # bytes of the longest path below a folder of runs
_TYPE = re.compile(r" <[^<>]*>$")
_HELP = "A configuration (a path or a name of `coterie list configs`), then table.key=value."


def complete_config(incomplete: str) -> list[str]:
    """List the shipped configurations that begin so, for the completion of a shell."""
    from coterie.experiment.tables import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def check_port(option: str, port: int) -> None:
    """Refuse a number that is no port."""
    if not 0 <= port <= _LAST_PORT:
        raise ConfigError(f"{option} {port} must be from 0 to {_LAST_PORT}")


_CONFIG = typer.Argument(
    metavar="[CONFIG] [KEY=VALUE]...", help=_HELP, autocompletion=complete_config
)
Changes = Annotated[list[str] | None, _CONFIG]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_CLIENT = "The name of a client, whose own model is used. Default: the global model."
_DATA = "A folder of images, or a file .npz, .npy, .csv or .parquet."
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help=_DATA)]
Client = Annotated[str | None, typer.Option(metavar="ID", help=_CLIENT)]
_WHICH = "The model of the last or of the best round."
Which = Annotated[str, typer.Option(metavar="last|best", help=_WHICH)]


class PlainCommand(TyperCommand):
    """A command whose help does not add the Python type to the name of an argument."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer would take a pipe to a worker that breaks for the output's."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise RuntimeError(str(error)) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                about = record[1].replace(
                    "\\[", "["
                )  # typer escapes it for rich, which is not used
                if not parameter.help:
                    about = f"{read_help(self, parameter.name)}  {about}".strip()
                sections[kind].append((_TYPE.sub("", record[0]), about))
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def read_help(command: Any, name: str) -> str:
    """Read the help of a parameter from the function: click 8.5 drops that of arguments."""
    parameters = get_params_from_function(inspect.unwrap(command.callback))
    return getattr(parameters[name].default, "help", None) or "" if name in parameters else ""


def check_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that cannot be made, before anything takes time."""
    if problem := paths.find_unwritable(folder, _ROOM):
        raise ConfigError(f"{option} {quote(str(folder))} {problem}; choose another")


def check_which(which: str) -> Literal["last", "best"]:
    """Check the value of `--which`."""
    if which not in ("last", "best"):
        raise ConfigError(f"--which {which} must be last or best")
    return cast(Literal["last", "best"], which)
