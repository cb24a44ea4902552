"""Text on a terminal: long lines end at words. Elsewhere lines are left whole, for programs."""

import shutil
import sys
import textwrap
from collections.abc import Sequence

import typer

from coterie.core.formatting import align_columns

_NARROWEST = 20  # columns of the last cell; below that its further lines begin near the margin
_MARGIN = 4


def find_width() -> int | None:
    """Return the columns of the terminal; None if the output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def echo(text: str, *, err: bool = False) -> None:
    """Print a line; on a terminal it is broken between words."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        text = _wrap(text, shutil.get_terminal_size().columns)
    typer.echo(text, err=err)


def echo_table(rows: Sequence[Sequence[str]]) -> None:
    """Print cells in aligned columns; on a terminal the last column is broken between words."""
    lines = align_columns(rows)
    if sys.stdout.isatty() and rows:
        indent = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1])
        width = shutil.get_terminal_size().columns
        indent = indent if width - indent >= _NARROWEST else _MARGIN
        lines = "\n".join(_wrap(line, width, " " * indent) for line in lines.splitlines())
    typer.echo(lines)


def _wrap(text: str, width: int, indent: str = "") -> str:
    wrapped = textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    return "\n".join(wrapped) or text
