"""What the uploads of a stage must look like: its rules, with the words of shapes as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coterie.core.bundle import Payload
from coterie.core.errors import ConfigError
from coterie.core.schema import Kinds, Rows, Schema, Shape, kinds_of
from coterie.kit.rules import Array, Arrays, Entries, Entry, Rules, Side

Sizes = Mapping[str, Shape]  # what every word of a shape stands for: one side or several


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that a tensor or blob may have, where its declaration says so."""

    least: int | None = None
    below: int | None = None

    def problem(self, lowest: float, highest: float) -> str | None:
        """Describe a value that is out of bounds, or return None."""
        if self.least is not None and lowest < self.least:
            return f"{lowest:g}, which is below {self.least}"
        if self.below is not None and highest >= self.below:
            return f"{highest:g}, which is not below {self.below}"
        return None


@dataclass(frozen=True)
class Expected:
    """The form of a stage's uploads; how many rows a blob may have depends on the client."""

    groups: Mapping[str, Kinds] = field(default_factory=dict)
    arrays: Mapping[str, Rows] = field(default_factory=dict)  # `most`: of one sample
    bounds: Mapping[tuple[str, str], Bounds] = field(default_factory=dict)  # by group and name
    array_bounds: Mapping[str, Bounds] = field(default_factory=dict)

    def schema(self, samples: int = 0) -> Schema:
        """Make the schema for a client of so many samples."""
        arrays = {n: replace(rows, most=rows.most * samples) for n, rows in self.arrays.items()}
        return Schema(self.groups, arrays)


def expect(down: Payload, rules: Rules, arrays: Arrays, sizes: Sizes) -> Expected:
    """Resolve rules against the broadcast; `ConfigError` for a group of which no form is known."""
    groups: dict[str, Kinds] = {}
    bounds: dict[tuple[str, str], Bounds] = {}
    have = ", ".join(down.tensors) or "no group"
    for group, rule in rules.items():
        if rule.entries is not None:
            groups[group] = _resolve(group, rule.entries, sizes)
            bounds |= {(group, n): _bound(group, e, sizes) for n, e in rule.entries.items()}
        elif (rule.like or group) in down:
            groups[group] = kinds_of(down[rule.like or group])
        elif rule.like:
            raise ConfigError(
                f"uploads of the group {group!r} must look like {rule.like!r} of the "
                f"broadcast, which has: {have}"
            )
        else:
            raise ConfigError(
                f"uploads of the group {group!r} have no form: the broadcast has {have}; use "
                f"{type(rule).__name__}(like=...), or declare them with "
                f"{type(rule).__name__}(entries={{name: Entry(dtype, shape)}})"
            )
    return Expected(
        groups,
        {
            name: Rows(array.dtype, _shape(name, array.shape, sizes), _one(name, array.each, sizes))
            for name, array in arrays.items()
        },
        bounds,
        {name: _bound(name, array, sizes) for name, array in arrays.items()},
    )


def _resolve(group: str, entries: Entries, sizes: Sizes) -> Kinds:
    return {
        name: (entry.dtype, _shape(f"{group}/{name}", entry.shape, sizes))
        for name, entry in entries.items()
    }


def _bound(owner: str, declared: Entry | Array, sizes: Sizes) -> Bounds:
    below = None if declared.below is None else _one(owner, declared.below, sizes)
    return Bounds(declared.least, below)


def _shape(owner: str, shape: tuple[Side, ...], sizes: Sizes) -> Shape:
    return tuple(side for word in shape for side in _sides(owner, word, sizes))


def _one(owner: str, side: Side, sizes: Sizes) -> int:
    sides = _sides(owner, side, sizes)
    if len(sides) != 1:
        raise ConfigError(f"{owner!r} needs one number, and {side!r} stands for {list(sides)}")
    return sides[0]


def _sides(owner: str, side: Side, sizes: Sizes) -> Shape:
    if isinstance(side, int):
        return (side,)
    if side not in sizes:
        known = ", ".join(sizes)
        raise ConfigError(f"the form of {owner!r} has an unknown side {side!r}; known: {known}")
    return sizes[side]
