"""Every command with its arguments and options as Markdown, read from it; `lists.py` calls it."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from coterie.cli.main import app
from coterie.cli.options import read_help

HEAD = "| argument or option | default | meaning |\n|---|---|---|"


def write(name: str) -> str:
    """Write the commands of the program, with those of `deploy` behind it."""
    return "\n\n".join(write_command(name, command) for name, command in list_commands(name))


def list_commands(name: str) -> Iterator[tuple[str, Any]]:
    """List the commands with the words that call each."""
    program: Any = typer.main.get_command(app)
    for word, command in program.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {word} {w}", inner) for w, inner in command.commands.items())
        else:
            yield f"{name} {word}", command


def write_command(name: str, command: Any) -> str:
    """Write a heading, what the command does, and a row for each of its parameters."""
    about = inspect.cleandoc(command.help or "").replace("\f", "")
    rows = [write_row(command, parameter) for parameter in command.params if not parameter.hidden]
    return "\n".join([f"## {name}", "", quote(about), "", HEAD, *rows])


def write_row(command: Any, parameter: Any) -> str:
    """Write the name, the default and the help of an argument or option."""
    if parameter.param_type_name == "argument":
        shown = parameter.metavar or parameter.name.upper()
    else:
        shown = " ".join([", ".join(parameter.opts), parameter.metavar or ""]).strip()
    default = parameter.default
    empty = default is None or default is False or callable(default)
    cells = f"`{shown}`", "" if empty else f"`{default}`", quote(read_help(command, parameter.name))
    row = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {row} |"


def quote(text: str) -> str:
    """Put the words that a reader types into backticks."""
    return re.sub(r"(?<![`\w-])((?:--[a-z-]+|[a-z_]+\.[a-z_]+=\S*[^\s.,;]))", r"`\1`", text)
