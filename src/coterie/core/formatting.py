"""Numbers and lists in words, as the page writes them."""

from collections.abc import Sequence

MEGABYTE = 1e6
_LISTED = 8  # longer lists end with "and N more"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: `1 round`, `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_first(items: Sequence[str]) -> str:
    """List the first few distinct items, and say how many more there are."""
    distinct = list(dict.fromkeys(items))
    more = f" and {len(distinct) - _LISTED:,} more" if len(distinct) > _LISTED else ""
    return ", ".join(distinct[:_LISTED]) + more


def short(text: str, length: int) -> str:
    """Cut a text to a length, with an ellipsis at the end."""
    return text if len(text) <= length else text[: length - 1] + "…"


def size(count: int) -> str:
    """Bytes in kB, MB or GB."""
    if count >= 1000 * MEGABYTE:
        return f"{count / MEGABYTE / 1000:,.2f} GB"
    return f"{count / MEGABYTE:,.1f} MB" if count >= MEGABYTE else f"{count / 1000:,.1f} kB"


def duration(seconds: float) -> str:
    """Write a time in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
