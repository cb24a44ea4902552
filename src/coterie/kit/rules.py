"""How a group of uploads is reduced, and what it must look like.

    Mean()                           like the group of the same name in the broadcast
    Sum(like="prototypes")           like another group of the broadcast
    Gather(entries={"means": Entry("float32", ("classes", "projection"))})       declared

A group has the names, dtypes and shapes of a group in the broadcast, or those that its rule
declares. What clients send never decides what others must send, so that one wrong client cannot get
the right ones rejected. A side of a declared shape is a number or one of these words:

    classes      the classes of the data          projection   the width of z
    width        the width of h                   a field      a number among the method's fields

and those that `Method.sizes` adds. Big arrays (blobs) are declared by the stage: `Array`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.core.header import BLOB_DTYPES
from coterie.core.schema import DTYPES

Side = int | str  # of a shape: a number, or a word that stands for one or several
Entries = Mapping[str, "Entry"]


@dataclass(frozen=True)
class Entry:
    """A declared tensor of a group: its dtype and shape, and the values that it may have."""

    dtype: str
    shape: tuple[Side, ...] = ()
    least: int | None = None  # no value is below it
    below: Side | None = None  # every value is below it

    def __post_init__(self) -> None:
        _check_dtype(self.dtype, DTYPES)


@dataclass(frozen=True)
class Array:
    """A declared blob: its dtype, the shape of a row, and how many rows a sample has at most.

    All arrays of an upload have equally many rows: those at one position belong together.
    """

    dtype: str
    shape: tuple[Side, ...] = ()
    each: Side = 1  # rows of a sample, at most
    least: int | None = None
    below: Side | None = None

    def __post_init__(self) -> None:
        _check_dtype(self.dtype, BLOB_DTYPES)


@dataclass(frozen=True)
class Mean:
    """The mean over clients, weighted by their numbers of samples; integers: the largest."""

    like: str = ""
    entries: Entries | None = None

    def __post_init__(self) -> None:
        _check_form(self)


@dataclass(frozen=True)
class Sum:
    """The sum over clients."""

    like: str = ""
    entries: Entries | None = None

    def __post_init__(self) -> None:
        _check_form(self)


@dataclass(frozen=True)
class Gather:
    """Every client's own tensors, by client."""

    like: str = ""
    entries: Entries | None = None

    def __post_init__(self) -> None:
        _check_form(self)


Rule = Mean | Sum | Gather
Rules = Mapping[str, Rule]  # of the groups of an upload
Arrays = Mapping[str, Array]  # of the blobs of an upload


def check_rules(rules: Mapping[str, Any], owner: str) -> None:
    """Raise `TypeError` where a group is reduced by anything but a rule."""
    for group, rule in rules.items():
        if not isinstance(rule, Rule):
            raise TypeError(
                f"{owner} reduces the group {group!r} by {rule!r}, which is none of Mean(), Sum(), "
                "Gather()"
            )


def check_arrays(arrays: Mapping[str, Any], owner: str) -> None:
    """Raise `TypeError` where a blob is declared as anything but an `Array`."""
    for name, array in arrays.items():
        if not isinstance(array, Array):
            raise TypeError(f"{owner} declares the array {name!r} as {array!r}, not as Array(...)")


def _check_form(rule: Rule) -> None:
    if rule.entries is None:
        return
    kind = type(rule).__name__
    if rule.like:
        raise TypeError(f"{kind}(like={rule.like!r}) has the form of that group: no entries")
    for name, entry in rule.entries.items():
        if not isinstance(entry, Entry):
            raise TypeError(f"{kind}() declares {name!r} as {entry!r}, not as Entry(...)")


def _check_dtype(dtype: str, known: Any) -> None:
    if dtype not in known:
        raise TypeError(f"{dtype!r} is none of the dtypes that travel: {', '.join(sorted(known))}")
