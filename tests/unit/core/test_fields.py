"""Every number of a configuration has bounds: a slip of the finger never starts a run."""

import json
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.fields import MOST, MOST_ROUNDS, WIDEST
from coterie.data.partition import load_class
from coterie.experiment.config import resolve
from coterie.experiment.tables import PLAIN, SPELLING
from coterie.kit.method import Method
from coterie.kit.objective import Objective

TOO_MANY = (10**18, 2**63, 10**400)


def parts() -> Iterator[tuple[str, type[Any], dict[str, Any]]]:
    """Every table with the class of its keys, and what must be chosen besides."""
    for table, kind in PLAIN.items():
        yield table, kind, {}
    bases: dict[str, type[Any]] = {"method": Method, "objective": Objective}
    for table, base in bases.items():
        for name in registry.names(f"{table}s"):
            yield table, registry.find(f"{table}s", name, base, table), {"name": name}
    for kind in registry.names("data/partitions"):
        yield "partition", load_class(kind), {"kind": kind}
    for name in registry.names("evaluate"):
        yield "evaluate", registry.find("evaluate", name, object, "evaluate.with"), {"name": name}


def numbers(wanted: type[int] | type[float]) -> list[tuple[str, str, dict[str, Any]]]:
    """Every key of a type: its table, its name, and what must be chosen besides."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for table, kind, choice in parts():
        hints = typing.get_type_hints(kind)  # without the bounds
        found += [
            (table, SPELLING.get(field.name, field.name), choice)
            for field in fields(kind)
            if wanted in (hints[field.name], *typing.get_args(hints[field.name]))
        ]
    return found


def refuse(table: str, key: str, value: Any, choice: dict[str, Any]) -> str:
    """Say what a configuration with that value is refused for."""
    tables = {table: {**choice, key: value}}
    if table == "evaluate" and choice:
        tables = {table: {"with": [{**choice, key: value}]}}
    with pytest.raises(ConfigError) as refused:
        resolve(tables)
    return str(refused.value)


def shown(case: tuple[str, str, dict[str, Any]]) -> str:
    return ".".join((case[0], *case[2].values(), case[1]))


@pytest.mark.parametrize("case", numbers(int), ids=shown)
def test_no_count_may_be_huge(case: tuple[str, str, dict[str, Any]]) -> None:
    table, key, choice = case
    for value in TOO_MANY:
        listed = [value] if key == "milestones" else value
        said = refuse(table, key, listed, choice)
        assert f"{key} = " in said and "\n" not in said and len(said) < 300


@pytest.mark.parametrize("case", numbers(float), ids=shown)
def test_no_number_may_be_infinite_or_next_to_it(case: tuple[str, str, dict[str, Any]]) -> None:
    table, key, choice = case
    for value in (float("inf"), float("nan"), 1e308):
        listed = [value] if key == "targets" else value
        said = refuse(table, key, listed, choice)
        assert f"{key} = " in said and "\n" not in said


def test_the_bounds_are_those_of_the_page() -> None:
    assert resolve({"run": {"rounds": MOST_ROUNDS}}).run.rounds == MOST_ROUNDS
    assert resolve({"local": {"epochs": MOST}}).local.epochs == MOST
    assert resolve({"net": {"projection": WIDEST}}).net.projection == WIDEST
    assert f"less than or equal to {WIDEST}" in refuse("net", "projection", WIDEST + 1, {})


def test_a_seed_is_exact_in_every_file_of_a_run_or_refused() -> None:
    config = resolve({"run": {"seed": 2**53 - 1}})
    assert tomllib.loads(config.to_toml())["run"]["seed"] == 2**53 - 1
    assert json.loads(json.dumps(config.tables, default=str))["run"]["seed"] == 2**53 - 1
    with pytest.raises(
        ConfigError, match=r"run\.seed = 9007199254740993.*less than 9007199254740992"
    ):
        resolve({"run": {"seed": 2**53 + 1}})
