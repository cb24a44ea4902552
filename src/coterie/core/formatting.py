"""Text for people: counts, sizes, durations, shortened lists, tables."""

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MEGABYTE = 1e6
_QUOTED, _WORD, _LINE = 100, 300, 1000  # most characters of a value, a path, a message
_LISTED = 8  # longer lists end with "and N more"
_GAP = 2  # columns of space between two cells


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: `1 round`, `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_first(items: Sequence[str]) -> str:
    """List the first few distinct items, and say how many more there are."""
    distinct = list(dict.fromkeys(items))
    more = f" and {len(distinct) - _LISTED:,} more" if len(distinct) > _LISTED else ""
    return ", ".join(distinct[:_LISTED]) + more


def shorten(text: str, length: int) -> str:
    """Cut a text to a length, with an ellipsis at the end."""
    return text if len(text) <= length else text[: length - 1] + "…"


def shorten_middle(text: str, length: int) -> str:
    """Cut the middle out of a text, so that its beginning and its end can be read."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - length :]}"


def escape_controls(text: str) -> str:
    """Write characters that a terminal would obey, or cannot print, as escapes; lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c.isspace() else repr(c)[1:-1] for c in text)


def quote(value: Any) -> str:
    """Write a value as Python does, for a message: short, and without control characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of thousands of digits
        text = f"<{type(value).__name__}>"
    return shorten_middle(escape_controls(text), _QUOTED)


def one_line(text: str) -> str:
    """Make a message one line of bounded length, whatever it quotes."""
    printable = escape_controls(re.sub(r"\s*[^\S ]\s*", " ", text.strip()))
    short = re.sub(rf"\S{{{_WORD},}}", lambda word: shorten_middle(word[0], _WORD), printable)
    return shorten_middle(short, _LINE)


def format_bytes(count: float) -> str:
    """Write a number of bytes as kB, MB or GB."""
    if count >= 1000 * MEGABYTE:
        return f"{count / MEGABYTE / 1000:,.2f} GB"
    return f"{count / MEGABYTE:,.1f} MB" if count >= MEGABYTE / 10 else f"{count / 1000:,.1f} kB"


def duration(seconds: float) -> str:
    """Write a time in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def align_columns(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Lay out cells in aligned columns; those whose index is in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        (" " * _GAP)
        .join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        .rstrip()
        for line in lines
    )


def fit_columns(lines: Sequence[Sequence[str]], width: int) -> str:
    """Lay out a table, head first, within a width.

    Heads are broken between words. Columns for which there is no room follow in a block below,
    with the first column again.
    """
    whole = align_columns(lines)
    if max(map(len, whole.splitlines()), default=0) <= width:
        return whole
    columns = list(zip(*lines, strict=True))
    first = _narrow(columns[0], width // 2)
    room = width - _measure(first) - _GAP
    blocks = _fill_blocks([_narrow(column, room) for column in columns[1:]], room)
    return "\n\n".join(_stack([first, *block]) for block in blocks)


def _narrow(column: Sequence[str], limit: int) -> list[list[str]]:
    """Break the head to the width of the cells, and cells to a limit, between words."""
    head, *cells = column
    longest = max((len(word) for word in head.split()), default=1)
    goal = max(longest, min(limit, max(map(len, cells), default=1)), 1)
    return [_break(cell, goal) for cell in column]


def _break(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def _measure(column: Sequence[Sequence[str]]) -> int:
    return max(len(line) for cell in column for line in cell)


def _fill_blocks(columns: Sequence[list[list[str]]], room: int) -> Iterator[list[list[list[str]]]]:
    """Put as many columns into a block as there is room for, at least one."""
    block: list[list[list[str]]] = []
    for column in columns:
        if block and sum(_measure(c) + _GAP for c in [*block, column]) - _GAP > room:
            yield block
            block = []
        block.append(column)
    yield block


def _stack(columns: Sequence[Sequence[Sequence[str]]]) -> str:
    """Lay out cells that have several lines each."""
    rows: list[list[str]] = []
    for cells in zip(*columns, strict=True):
        height = max(map(len, cells))
        rows += [[cell[at] if at < len(cell) else "" for cell in cells] for at in range(height)]
    return align_columns(rows)


@dataclass(frozen=True)
class TextTable:
    """A table of text."""

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    def to_text(self, width: int) -> str:
        """Format it for a terminal of a width, without its title."""
        return fit_columns([self.head, *self.lines], width)

    def to_markdown(self) -> str:
        """Format it as Markdown, without its title."""
        head, *lines = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
            for line in (self.head, *self.lines)
        )
        return "\n".join([head, "|" + "---|" * len(self.head), *lines])
