"""Signatures and first lines of docstrings for pages, read from the source; `lists.py` calls it.

A name is where a user finds it (`coterie.kit.train`); its definition may be in another file.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
_SPECIAL = ("__call__", "__getitem__", "__len__")  # methods that a user calls by other means
_QUOTED = re.compile(r'((?:->|:) )"([^"]+)"(?=[:,)])')  # an annotation in quotes
_Definition = ast.FunctionDef | ast.ClassDef


def write(what: str, names: str) -> str:
    """Write what a comment asks for: `signatures` or `functions` as code, `names` as a table."""
    if what == "names":
        return write_table(names)
    return write_code(list(_list_definitions(names.split(), what == "functions")))


def write_table(module: str) -> str:
    """Write a table of the names that a module exports, with a line about each."""
    names = list_members(module)
    lines = [describe(f"{module}.{name}").replace("|", "\\|") for name in names]
    rows = [f"| `{name}` | {line} |" for name, line in zip(names, lines, strict=True)]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def write_code(names: list[str]) -> str:
    """Write the signatures of functions and classes, and the values of others, as Python."""
    parts = [_write_definition(*locate(name)) for name in names]
    return "\n".join(["<!-- shape only -->", "```python", "\n\n".join(parts), "```"])


def _list_definitions(names: list[str], functions: bool) -> Iterator[str]:
    """List names; for a module those that it exports, perhaps its functions alone."""
    for name in names:
        if _find_module(name) is None:
            yield name
            continue
        members = [f"{name}.{member}" for member in list_members(name)]
        yield from filter(_names_function, members) if functions else members


def _names_function(name: str) -> bool:
    return _find_exported_module(name) is None and _is_function(locate(name)[1])


def list_members(module: str) -> list[str]:
    """List the names that a package imports for its users, or those that a module defines."""
    file = _require_module(module)
    if file.name == "__init__.py":
        exported = {alias.name for node in _imports(file) for alias in node.names}
        return sorted(exported, key=lambda name: (name.casefold(), name))
    names = dict.fromkeys(_name(node) for node in _parse(file).body)
    return [name for name in names if name and not name.startswith("_")]


def describe(name: str) -> str:
    """Write a line about a name: from its docstring, else from its value and the comment there."""
    module = _find_exported_module(name)
    if module is not None:
        return _first_line(_parse(module))
    file, node = locate(name)
    if isinstance(node, _Definition):
        return _first_line(node)
    assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    body = _parse(file).body
    text = "".join(map(_read_text, body[body.index(node) + 1 :][:1]))
    comment = _lines(file)[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
    value = _list_choices(node.value) or ("" if text else f"`{ast.unparse(node.value)}`")
    return ": ".join(part for part in (value, text or comment) if part)


def locate(name: str) -> tuple[Path, ast.stmt]:
    """Find the file and the statement that define a name of a module, through imports."""
    module, _, last = name.rpartition(".")
    file = _require_module(module)
    for node in _parse(file).body:
        if _name(node) == last:
            return file, node
    for imported in _imports(file):
        if any(alias.name == last for alias in imported.names):
            return locate(f"{imported.module}.{last}")
    raise LookupError(f"{module} has no {last}")


def _find_module(name: str) -> Path | None:
    """Find the file of a module; None for a name within one."""
    path = SOURCE.joinpath(*name.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def _require_module(name: str) -> Path:
    file = _find_module(name)
    if file is None:
        raise LookupError(f"there is no module {name}")
    return file


def _find_exported_module(name: str) -> Path | None:
    """Find the module that a package exports under a name, such as `coterie.losses`."""
    if (file := _find_module(name)) is not None:
        return file
    module, _, last = name.rpartition(".")
    package = _find_module(module)
    for node in _imports(package) if package else ():
        if any(alias.name == last for alias in node.names):
            return _find_exported_module(f"{node.module}.{last}")
    return None


def _write_definition(file: Path, node: ast.stmt, indent: str = "") -> str:
    """Write a definition: its head, the first line of its docstring, the members of a class."""
    if not isinstance(node, _Definition):
        return "\n".join(_lines(file)[node.lineno - 1 : node.end_lineno])
    about = _first_line(node)
    text = "\n".join(_head(file, node))
    if about:
        text += f'\n{indent}    """{about}"""'
    elif _is_function(node) and not text.endswith("..."):
        text += " ..."
    apart = True  # an empty line before and after methods, none between fields
    for member in _members(node) if isinstance(node, ast.ClassDef) else ():
        before, apart = apart, _is_function(member) and not _is_overload(member)
        text += "\n\n" if before or apart else "\n"
        text += _write_definition(file, member, f"{indent}    ")
    return text


def _members(node: ast.ClassDef) -> Iterator[ast.stmt]:
    """The fields and methods of a class that are for users; of overloads, not what they share."""
    overloaded = {_name(member) for member in node.body if _is_overload(member)}
    for member in node.body:
        name = _name(member) or "_"
        hidden = name.startswith("_") and name not in _SPECIAL
        if not hidden and (name not in overloaded or _is_overload(member)):
            yield member


def _is_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef)


def _is_overload(node: ast.stmt) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else ()
    return any(ast.unparse(decorator) == "overload" for decorator in decorators)


def _head(file: Path, node: _Definition) -> list[str]:
    """The lines from the first decorator to the colon, as they are in the file."""
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    stop = max(node.lineno, node.body[0].lineno - 1)
    lines = [_QUOTED.sub(r"\1\2", line) for line in _lines(file)[start - 1 : stop]]
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def _first_line(node: ast.ClassDef | ast.FunctionDef | ast.Module) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _read_text(node: ast.stmt) -> str:
    """The text of a statement that is nothing else: the docstring of the name above it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _list_choices(value: ast.expr) -> str:
    """The values of a `Literal`."""
    if isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal":
        return ", ".join(f'`"{choice}"`' for choice in ast.literal_eval(value.slice))
    return ""


def _name(node: ast.stmt) -> str | None:
    """The name that a statement defines."""
    if isinstance(node, _Definition):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return targets[0].id if isinstance(targets[0], ast.Name) else None


@cache
def _imports(file: Path) -> tuple[ast.ImportFrom, ...]:
    """What a file imports of the package."""
    nodes = [node for node in ast.walk(_parse(file)) if isinstance(node, ast.ImportFrom)]
    return tuple(node for node in nodes if (node.module or "").startswith("coterie"))


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
