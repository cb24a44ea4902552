"""How a group of uploads is reduced: `Mean()`, `Sum(like="prototypes")`, `Gather()`.

A group must have the names, shapes and dtypes of the group of that name in the broadcast, or of the
group `like` there. A group that is like none in the broadcast must look alike on all clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mean:
    """The mean over clients, weighted by their numbers of samples; integers: the largest."""

    like: str = ""


@dataclass(frozen=True)
class Sum:
    """The sum over clients."""

    like: str = ""


@dataclass(frozen=True)
class Gather:
    """Every client's own tensors, by client."""

    like: str = ""


Rule = Mean | Sum | Gather
Rules = Mapping[str, Rule]  # of the groups of an upload


def check_rules(rules: Mapping[str, Any], owner: str) -> None:
    """Raise `TypeError` where a group is reduced by anything but a rule."""
    for group, rule in rules.items():
        if not isinstance(rule, Rule):
            raise TypeError(
                f"{owner} reduces the group {group!r} by {rule!r}, which is none of Mean(), Sum(), "
                "Gather()"
            )
