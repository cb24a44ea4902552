"""Every key of a configuration as tables for a page, read from the classes; `lists.py` calls it.

What a key means is the comment behind its field, else the sentence of the page that explains the
table. Tables whose keys depend on a name (methods, objectives, partitions, evaluators) have a list
of keys for each.
"""

import ast
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types

from coterie.core import registry
from coterie.data.partition import load_class
from coterie.data.skew import Skewed
from coterie.experiment.tables import PLAIN, SPELLING
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.objective import Objective

FOLDERS = {
    "methods": "methods",
    "objectives": "objectives",
    "partitions": "data/partitions",
    "evaluators": "evaluate",
}
EVALUATORS = Evaluator | FederatedEvaluator
NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "table"}
WORDS = {
    annotated_types.Ge: ("ge", "at least"),
    annotated_types.Gt: ("gt", "above"),
    annotated_types.Le: ("le", "at most"),
    annotated_types.Lt: ("lt", "below"),
}
DOCS = Path(__file__).parent
COMMON = ("skew", "strength", "label_swap")  # keys of every partition
KEY = ("as", "the name of its metric")  # the field `key` of an evaluator, as it is written
HEAD = "| key | default | type and bounds | meaning |\n|---|---|---|---|"


def write(names: str) -> str:
    """Write the keys of a plain table such as `run`, or of every part of a kind."""
    if names in PLAIN:
        return write_table(PLAIN[names], "configuration", f"[{names}]", f"{names}.")
    if names == "partition":
        return write_table(Skewed, "configuration", "dirichlet", "partition.")
    return "\n\n".join(write_part(names, name) for name in registry.names(FOLDERS[names]))


def write_part(kind: str, name: str) -> str:
    """Write the name, a line and the keys of a method, objective, partition or evaluator."""
    part = find_class(kind, name)
    page = f"{kind}/{name}" if (DOCS / kind / f"{name}.md").exists() else ""
    about = (inspect.getdoc(part) or "").partition("\n")[0]
    title = f"[`{name}`]({page}.md)" if page else f"`{name}`"
    where = {"objectives": "configuration", "partitions": "configuration"}
    source = {**where, "evaluators": "evaluation"}.get(kind, page)
    prefix = "" if kind == "evaluators" else f"{kind.removesuffix('s')}."
    hidden = COMMON if kind == "partitions" else ()
    rows = write_table(part, source, name, prefix, hidden)
    return f"**{title}**: {about}\n\n{rows or 'No keys.'}"


def find_class(kind: str, name: str) -> type[Any]:
    """Find the class of a part."""
    if kind == "partitions":
        return load_class(name)
    bases: dict[str, Any] = {"methods": Method, "objectives": Objective, "evaluators": EVALUATORS}
    return registry.find(FOLDERS[kind], name, bases[kind], kind)


def write_table(
    part: type[Any], page: str, heading: str, prefix: str, hidden: tuple[str, ...] = ()
) -> str:
    """Write a row for every field of a class; nothing if it has none."""
    hints = typing.get_type_hints(part, include_extras=True)
    rows = []
    for field in fields(part):
        if field.name in hidden:
            continue
        key, about = SPELLING.get(field.name, field.name), find_comment(part, field.name)
        if field.name == "key" and not prefix:
            key, about = KEY
        about = about or find_sentence(page, heading, prefix, key)
        cells = [f"`{prefix}{key}`", write_default(field), describe_type(hints[field.name]), about]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([HEAD, *rows]) if rows else ""


def find_sentence(page: str, heading: str, prefix: str, key: str) -> str:
    """Find what a page says about a key: the last cell of its row, without links and comments."""
    text = (DOCS / f"{page}.md").read_text()
    if page == "configuration":
        text = text.partition(f"# {heading}\n")[2].partition("\n#")[0]
    row = re.search(rf"^\| `(?:{re.escape(prefix)})?{key}` \|.*\| (.*?) \|$", text, re.M)
    if row is None or not row[1]:
        raise LookupError(f"{page}.md says nothing about {prefix}{key} of {heading}")
    return re.sub(r"<!--.*?-->|\[([^]]*)\]\([^)]*\)", r"\1", row[1])


def write_default(field: Field[Any]) -> str:
    """Write the default of a field as TOML has it."""
    made = field.default_factory is not MISSING
    value = field.default_factory() if made else field.default
    if value is MISSING:
        return "required"
    return "none" if value is None else f"`{json.dumps(value)}`"


def describe_type(hint: Any) -> str:
    """Say what a value may be: `number, at least 0`, `"a" or "b"`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = ", ".join(f"{word} {bound:g}" for word, bound in list_bounds(arguments[1:]))
        return f"{describe_type(arguments[0])}{', ' if bounds else ''}{bounds}"
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe_type, arguments)))
    if origin in (tuple, list):
        items = [describe_type(argument) for argument in arguments if argument is not Ellipsis]
        return " or ".join(
            f"list of ({i})" if "," in i else f"list of {i}s" for i in dict.fromkeys(items)
        )
    if hint is type(None):
        return "nothing"
    return NAMES.get(origin or hint, "value")


def list_bounds(parts: tuple[Any, ...]) -> Iterator[tuple[str, float]]:
    """List the bounds of an annotated number."""
    for part in parts:
        if type(part) in WORDS:
            attribute, word = WORDS[type(part)]
            yield word, getattr(part, attribute)


def find_comment(part: type[Any], field: str) -> str:
    """Find the comment behind a field, in the class or in one that it extends."""
    for owner in part.__mro__:
        if field in inspect.get_annotations(owner):
            return read_comments(owner).get(field, "")
    return ""


@cache
def read_comments(owner: type[Any]) -> dict[str, str]:
    """Read the comments and docstrings behind the fields of a class from its source."""
    lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    assert isinstance(tree, ast.ClassDef)
    comments = {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        texts = [line.partition("  # ")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts.append(" ".join(str(after.value.value).split()))
        comments[node.target.id] = " ".join(filter(None, texts))
    return comments
