"""What a recipe sets otherwise than the shipped configurations do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.experiment import config as configuration
from coterie.experiment import tables
from coterie.experiment.config import Config
from coterie.experiment.tables import Tables
from coterie.reproduce.plan import Cell, Plan, plain

_UNTOLD = ("executor", "checkpoint", "record")  # they change no result


def differences(plan: Plan) -> Iterator[str]:
    """What is set otherwise than in the shipped configurations: for all, by column, by row."""
    changed = {(cell.row.name, cell.column.name): _changes(plan, cell) for cell in plan.cells}
    everywhere = _shared(list(changed.values()))
    yield from ([f"everywhere: {_in_words(everywhere)}"] if everywhere else [])
    rest = {key: _less(found, everywhere) for key, found in changed.items()}
    for place, things in ((1, plan.columns), (0, plan.rows)):
        for thing in things:
            group = {key: found for key, found in rest.items() if key[place] == thing.name}
            common = _shared(list(group.values()))
            if common:
                yield f"{thing.name}: {_in_words(common)}"
                rest |= {key: _less(found, common) for key, found in group.items()}
    for (row, column), found in rest.items():
        if found:
            yield f"{row}, {column}: {_in_words(found)}"


def _changes(plan: Plan, cell: Cell) -> dict[str, Any]:
    """The keys of a cell that differ from the shipped configuration it is nearest to."""
    point = cell.points[0]
    config = plan.config(cell, point, 0)
    named = f"{config.data.name}/{point.method}"
    source = named if named in tables.shipped() else point.setting
    before = configuration.load(source, _leave(config, source)).tables
    tried = cell.row.tried(plan.scale)  # each point has its own, see the tables of the grids
    return {
        f"{table}.{key}": value
        for table, values in config.tables.items()
        for key, value in values.items()
        if table not in _UNTOLD
        and f"{table}.{key}" not in tried
        and (key not in before[table] or before[table][key] != value)
    }


def _leave(config: Config, source: str) -> Tables:
    """The user's word on what may be shared, without which the shipped file is refused."""
    method = config.tables["method"]
    if tables.tables_of(source).get("method", {}).get("name") != method["name"]:
        return {}
    return {"method": {key: word for key, word in method.items() if key.startswith("share_")}}


def _shared(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of them have alike."""
    first, *others = found or [{}]
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def _less(found: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in taken}


def _in_words(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {plain(value)}" for key, value in found.items())
