"""A table of text: for a terminal, and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

Line = Sequence[str]


@dataclass(frozen=True)
class Sheet:
    """A table: its title, its head, its lines."""

    title: str
    head: Line
    lines: Sequence[Line]


def aligned(sheet: Sheet) -> str:
    """The table for a terminal."""
    lines = [sheet.head, *sheet.lines]
    widths = [max(len(line[place]) for line in lines) for place in range(len(sheet.head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_markdown(sheet: Sheet) -> str:
    """The table without its title."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(sheet.head), "|" + "---|" * len(sheet.head), *map(line, sheet.lines)])


def large(value: float) -> str:
    """A number that may be very large: `1.69e13`; below a million with all its digits."""
    if value < 1e6:
        return f"{value:,.0f}"
    digits, _, power = f"{value:.3g}".partition("e+")
    return f"{digits}e{int(power)}"
