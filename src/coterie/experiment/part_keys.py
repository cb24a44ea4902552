"""Checks the names and keys of chosen parts from their source, without importing torch.

A method, objective or evaluator is a dataclass in a file of its own; its fields are read from the
text of the file. A data set or backbone is a file, too, and has its name checked alone. Values are
checked later, when the class is imported. Parts of the user's own,
`"package.module:Class"`, are not looked at.
"""

import ast
import functools
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from coterie.core import registry
from coterie.evaluate import ALIASES
from coterie.experiment import own
from coterie.experiment.evaluators import SPELLING, EvaluatorEntry, names
from coterie.experiment.schema import check_keys

DEFAULT_CHOICE = {"partition": "dirichlet", "objective": "supervised", "method": "fedavg"}
NAMED = {"data": "data/sources", "net": "nets/backbones"}  # parts without keys of their own
_PACKAGE = Path(__file__).parent.parent


def check_part(table: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> None:
    """Check the name and keys of a method, objective or partition: of a file, and what is over it.

    If `over` names another part than the file does, the keys of the file were meant for that one.
    """
    key = own.MAIN[table]
    choice = over.get(key, base.get(key, DEFAULT_CHOICE[table]))
    if not isinstance(choice, str) or ":" in choice:
        return
    same = key not in over or choice == base.get(key)
    given = [name for name in ({**base, **over} if same else over) if name != key]
    if table == "partition":
        from coterie.data.partition import load_class  # numpy, no torch

        known = tuple(field.name for field in fields(load_class(choice)))
    else:
        registry.check_known(f"{table}.{key}", choice, registry.names(f"{table}s"))
        known = read_fields(f"{table}s", choice)
    check_keys(table, choice, known, given, (key,))


def check_name(table: str, name: str) -> None:
    """Check the name of a data set or backbone, which is that of a file, or the user's own."""
    if ":" not in name and not (table == "data" and name == own.GIVEN):
        registry.check_known(f"{table}.{own.MAIN[table]}", name, registry.names(NAMED[table]))


def check_entry(entry: EvaluatorEntry) -> None:
    """Check the name and keys of an evaluator."""
    if ":" in entry.name or entry.part is not None:
        return
    registry.check_known(entry.origin, entry.name, names())
    file = ALIASES.get(entry.name, {}).get("name", entry.name)
    known = [SPELLING.get(name, name) for name in read_fields("evaluate", file)]
    given = [key for key in entry.given if key != "as"]
    check_keys(f"{entry.origin}: {entry.name}", entry.name, known, given)


@functools.cache
def read_fields(folder: str, name: str) -> tuple[str, ...]:
    """Read the fields of the dataclass in the file of a part, in their order."""
    path = _PACKAGE / folder / f"{name.replace('-', '_')}.py"
    kinds = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    part = next(kind for kind in kinds if "final" in map(ast.unparse, kind.decorator_list))
    return tuple(
        line.target.id
        for line in part.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if not ast.unparse(line.annotation).startswith("ClassVar")
    )
