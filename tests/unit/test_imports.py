"""Who may import whom, and what no file of the package may do: read from the source."""

import ast
import dataclasses
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import coterie
from coterie.core import registry
from coterie.experiment.tables import CONFIGS, shipped
from coterie.kit.method import Method
from coterie.kit.objective import Objective

PACKAGE = Path(coterie.__file__).parent
PROJECT = PACKAGE.parent.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

ROOT = "coterie"
WIRING = ("cli", "config", "settings", "experiment", "runner", "reproduce", "__main__")
# the longest prefix of a module's name says what it may import, by prefixes again
RULES: dict[str, tuple[str, ...]] = {
    "core": ("core",),
    "core.exact": ("core", ROOT),  # the version is a part of what exact bits depend on
    "nets": ("core", "nets"),
    "kit": ("core", "nets", "kit"),
    "methods": ("core", "nets", "kit", "methods"),
    "objectives": ("core", "nets", "kit", "objectives"),
    "evaluate": ("core", "nets", "kit", "evaluate"),
    "data": ("core", "kit", "nets.native", "data"),
    "engine": ("core", "kit", "engine"),
    "engine.site": ("core", "nets", "kit", "data", "engine"),
    "engine.parts": ("core", "nets", "kit", "data", "engine"),
    "executors": ("core", "data", "engine", "executors"),
    "report": ("core", "engine.record", "report"),
}

# `data.unpickle` alone reads pickles that others published, with a reader that imports no name
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}


def name_of(path: Path) -> str:
    """`core.bundle` for src/coterie/core/bundle.py; the package itself is `coterie`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) or ROOT


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported(path: Path) -> Iterator[str]:
    """Every module of the package that a file imports, wherever in the file it does so."""
    modules = {name_of(source) for source in SOURCES}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            longer = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [
                name if name.removeprefix("coterie.") in modules else node.module for name in longer
            ]
        else:
            continue
        yield from (
            name.removeprefix("coterie.") for name in found if name.split(".")[0] == "coterie"
        )


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_imports_what_it_may(path: Path) -> None:
    module = name_of(path)
    if within(module, WIRING) or module == ROOT:
        return
    owners = [rule for rule in RULES if within(module, (rule,))]
    assert owners, f"say in RULES what {module} may import"
    allowed = RULES[max(owners, key=len)]
    for other in imported(path):
        fine = other in allowed if other == ROOT else within(other, allowed)
        assert fine, f"{module} may not import {other}, only {', '.join(allowed)}"


def test_only_the_command_line_knows_the_recipes() -> None:
    for path in SOURCES:
        if not within(name_of(path), ("cli", "reproduce", "__main__")):
            assert not any(within(other, ("cli", "reproduce")) for other in imported(path)), path
    for path in sorted((PACKAGE / "reproduce").glob("*.py")):
        assert not any(within(other, ("cli",)) for other in imported(path)), path.name


def test_the_loop_knows_no_site() -> None:
    """Through a site it would get at the data; only executors hold one."""
    for path in sorted((PACKAGE / "engine").glob("*.py")):
        assert "engine.site" not in set(imported(path)), path.name


def test_the_package_imports_its_public_names_lazily() -> None:
    top = tree(PACKAGE / "__init__.py").body
    at_once = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in top
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not any(str(module).startswith("coterie") for module in at_once)
    assert coterie.__all__ == sorted(coterie.__all__)
    assert all(getattr(coterie, name) is not None for name in coterie.__all__)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_file_does_what_is_forbidden(path: Path) -> None:
    module = name_of(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            unsafe = UNSAFE - {"pickle"} if module == "data.unpickle" else UNSAFE
            assert not unsafe & {name.split(".")[0] for name in names}, f"{module}: {names}"
    for function, call in calls(path):
        place = f"{module}:{call.lineno}: {function}"
        assert function not in ("eval", "exec", "torch.load", "torch.save"), place
        assert not re.fullmatch(r"(.*\.)?pickle\.(load|loads|dump|dumps)", function), place
        assert not function.endswith(".cuda"), place
        if module != "core.seeds":
            assert not function.endswith("random.seed"), place
            assert function != "torch.manual_seed", place
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle":
                assert ast.unparse(keyword.value) == "False", place


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def classes(module: ModuleType) -> list[type]:
    found = inspect.getmembers(module, inspect.isclass)
    return [kind for _, kind in found if kind.__module__ == module.__name__]


@pytest.mark.parametrize(
    ("folder", "base", "name"),
    [
        (folder, base, name)
        for folder, base in (("methods", Method), ("objectives", Objective))
        for name in registry.names(folder)
    ],
)
def test_a_method_or_objective_is_one_final_frozen_dataclass(
    folder: str, base: type, name: str
) -> None:
    module = import_module(f"coterie.{folder}.{name}")
    found = [kind for kind in classes(module) if issubclass(kind, base)]
    assert len(found) == 1, f"{module.__name__} has {len(found)} classes of {base.__name__}"
    (kind,) = found
    assert getattr(kind, "__final__", False), f"{kind.__name__} is not @final"
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    ancestors = [parent for parent in kind.__mro__[1:] if issubclass(parent, base)]
    assert ancestors == [base], f"{kind.__name__} inherits from {ancestors[0].__name__}"
    assert inspect.getdoc(module), "the docstring has the paper and the equation"


@pytest.mark.parametrize("name", registry.names("methods"))
def test_a_method_has_a_page_an_oracle_and_a_configuration(name: str) -> None:
    assert (PROJECT / "docs" / "methods" / f"{name}.md").is_file()
    assert (PROJECT / "tests" / "oracles" / f"test_{name}.py").is_file()
    configured = {
        tomllib.loads((CONFIGS / f"{config}.toml").read_text())["method"]["name"]
        for config in shipped()
    }
    assert name in configured


@pytest.mark.parametrize("config", shipped())
def test_a_shipped_configuration_opens_with_its_command(config: str) -> None:
    first = (CONFIGS / f"{config}.toml").read_text().splitlines()[0]
    assert first.startswith(f"# coterie run {config}")
