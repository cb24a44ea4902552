"""Numbers and lists in words, as the page writes them."""

from collections.abc import Sequence

MEGABYTE = 1e6
_NAMED = 8  # rounds or clients that are named before they are only counted


def counted(number: int, word: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def some(words: Sequence[str]) -> str:
    """The first few of the words, each once, and how many more there are."""
    once = list(dict.fromkeys(words))
    more = f" and {len(once) - _NAMED:,} more" if len(once) > _NAMED else ""
    return ", ".join(once[:_NAMED]) + more


def short(value: str, length: int) -> str:
    """Text cut to a length."""
    return value if len(value) <= length else value[: length - 1] + "…"


def size(count: int) -> str:
    """Bytes in kB, MB or GB."""
    if count >= 1000 * MEGABYTE:
        return f"{count / MEGABYTE / 1000:,.2f} GB"
    return f"{count / MEGABYTE:,.1f} MB" if count >= MEGABYTE else f"{count / 1000:,.1f} kB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
