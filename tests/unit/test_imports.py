"""Who may import whom, and what no file of the package may do: read from the source."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import coterie
from coterie.core import registry
from coterie.experiment.tables import CONFIGS, shipped
from coterie.kit.method import Method
from coterie.kit.objective import Objective

PACKAGE = Path(coterie.__file__).parent
PROJECT = PACKAGE.parent.parent
ROOT = "coterie"

# What the modules of a room may import, beside the room itself; the longest name that fits counts.
ROOMS: dict[str, tuple[str, ...]] = {
    "types": (),
    "core": (),
    "core.exact": (ROOT,),  # the version is part of the environment that exact bits depend on
    "native": ("core",),
    "nets": ("core", "native"),
    "data": ("types", "core", "native"),
    "kit": ("core", "native", "nets", "data"),
    "methods": ("kit",),
    "methods.mfcl": ("kit", "nets"),  # alone among methods it builds networks of its own
    "objectives": ("kit",),
    "evaluate": ("kit",),
    "engine": ("core", "native", "nets", "data", "kit"),
    "executors": ("core", "data", "engine"),
    "sinks": ("engine.record", "engine.sink"),
    "report": ("core", "engine.record"),
    "experiment": (
        *("types", "core", "native", "nets", "data", "kit", "evaluate", "engine", "executors"),
        "report",
    ),
    "deploy": (ROOT, "core", "data", "kit", "engine", "executors", "report", "experiment"),
    "reproduce": (ROOT, "core", "data", "kit", "engine", "report", "experiment"),
    "cli": (
        *(ROOT, "types", "core", "native", "nets", "data", "kit", "evaluate", "engine"),
        *("report", "experiment", "deploy", "reproduce"),
    ),
    "__main__": ("cli", "core"),
    ROOT: ("types", "core", "kit", "engine.record", "engine.sink", "experiment"),
}
LONGEST_FILE = 400
LONGEST_FUNCTION_OF_A_METHOD = 40

# `data.unpickle` alone reads pickles that others published, with a reader that imports no name
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
FORBIDDEN_CALLS = re.compile(
    r"eval|exec|torch\.load|torch\.save|(.*\.)?pickle\.(load|loads|dump|dumps)|.*\.cuda"
)
SEEDING_CALLS = re.compile(r".*random\.seed|torch\.manual_seed")


def name_of(path: Path) -> str:
    """`core.bundle` for src/coterie/core/bundle.py; the package itself is `coterie`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) or ROOT


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
METHODS = [module for module in SOURCES if module.startswith("methods.")]


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(SOURCES[module].read_text(), str(SOURCES[module]))))


@cache
def imported(module: str) -> frozenset[str]:
    """Every module of the package that a module imports, wherever in the file it does so."""
    names: list[str] = []
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                names.append(f"{ROOT}.a relative import in line {node.lineno}")
                continue
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                is_module = longer.removeprefix(f"{ROOT}.") in SOURCES
                names.append(longer if is_module else str(node.module))
    return frozenset(name.removeprefix(f"{ROOT}.") for name in names if within(name, (ROOT,)))


def within(module: str, prefixes: Iterable[str]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def calls(module: str) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes(module):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def assert_none(offenders: Iterable[str]) -> None:
    """Fail with a list of all offenders."""
    listed = sorted(offenders)
    assert not listed, "\n".join(["", *listed])


def test_a_module_imports_only_from_the_rooms_below_it() -> None:
    offenders = []
    for module in SOURCES:
        rooms = [room for room in ROOMS if within(module, (room,))]
        if not rooms:
            offenders.append(f"{module}: ROOMS does not say what it may import")
            continue
        room = max(rooms, key=len)
        allowed = (*ROOMS[room], module.split(".")[0])
        offenders += [
            f"{module} imports {other}"
            for other in imported(module)
            if not (other in allowed if other == ROOT else within(other, allowed))
        ]
    assert_none(offenders)


def test_the_rooms_stand_in_an_order_without_a_circle() -> None:
    """A room may only name rooms that are written above it; the package itself comes last."""
    above: list[str] = [ROOT]
    offenders = []
    for room, below in ROOMS.items():
        offenders += [f"{room} names {other}" for other in below if not within(other, above)]
        above.append(room)
    assert_none(offenders)


def test_the_loop_knows_no_site() -> None:
    """Through a site it would reach the data; only executors hold one."""
    assert_none(
        module
        for module in SOURCES
        if within(module, ("engine",)) and "engine.site" in imported(module)
    )


def test_the_package_imports_its_public_names_lazily() -> None:
    top = ast.parse(SOURCES[ROOT].read_text()).body
    at_once = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in top
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert_none(str(module) for module in at_once if within(str(module), (ROOT,)))
    assert coterie.__all__ == sorted(coterie.__all__)
    assert_none(name for name in coterie.__all__ if getattr(coterie, name) is None)


EXTRAS = {  # and the room that alone may import it
    "ray": "executors.cluster",
    "flwr": "deploy",
    **dict.fromkeys(("mlflow", "tensorboard", "trackio", "wandb"), "sinks"),
}


def test_an_extra_is_imported_only_by_its_own_room_and_only_when_it_is_used() -> None:
    offenders = []
    for module in SOURCES:
        for node in nodes(module):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
                used = {name.split(".")[0] for name in names} & EXTRAS.keys()
                offenders += [
                    f"{module}:{node.lineno} imports {extra}"
                    for extra in used
                    if not within(module, (EXTRAS[extra],))
                ]
    assert_none(offenders)
    code = "import coterie.cli.main, coterie.experiment.run, coterie.experiment.prepare, sys; "
    code += f"sys.exit(', '.join({set(EXTRAS)} & sys.modules.keys()) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plain_tables_are_there_without_torch() -> None:
    """A wrong key in a configuration is answered before torch is loaded, which takes seconds."""
    code = "import coterie.core.settings, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_file_unpickles_evaluates_text_or_seeds_generators() -> None:
    offenders = []
    for module in SOURCES:
        unsafe = UNSAFE - {"pickle"} if module == "data.unpickle" else UNSAFE
        for node in nodes(module):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                bad = unsafe & {name.split(".")[0] for name in names}
                offenders += [f"{module}:{node.lineno}: imports {name}" for name in bad]
        for function, call in calls(module):
            pickles = any(
                keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
                for keyword in call.keywords
            )
            seeds = module != "core.seeds" and SEEDING_CALLS.fullmatch(function)
            tensors_only = function == "torch.load" and any(
                ast.unparse(keyword) == "weights_only=True" for keyword in call.keywords
            )
            forbidden = FORBIDDEN_CALLS.fullmatch(function) and not tensors_only
            if pickles or seeds or forbidden:
                offenders.append(f"{module}:{call.lineno}: {ast.unparse(call)}")
    assert_none(offenders)


def test_a_file_is_short() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in SOURCES.items()}
    assert_none(
        f"{module}: {length} lines" for module, length in lengths.items() if length > LONGEST_FILE
    )


def test_no_function_of_a_method_is_long() -> None:
    offenders = []
    for module in METHODS:
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGEST_FUNCTION_OF_A_METHOD:
                    offenders.append(f"{module}:{node.lineno}: {node.name} has {length} lines")
    assert_none(offenders)


def test_no_class_name_stands_twice_in_the_package() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in SOURCES:
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    assert_none(
        f"{name}: {', '.join(modules)}" for name, modules in places.items() if len(modules) > 1
    )


def test_no_method_compares_the_name_of_a_stage() -> None:
    """A stage brings its own functions, so no function has to ask which stage it is in."""

    def asks_for_a_stage(expression: ast.expr) -> bool:
        asked = {node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)}
        asked |= {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        return "stage" in asked

    offenders = []
    for module in METHODS:
        for node in nodes(module):
            if isinstance(node, ast.Compare) and any(
                asks_for_a_stage(side) for side in (node.left, *node.comparators)
            ):
                offenders.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
            elif isinstance(node, ast.Match) and asks_for_a_stage(node.subject):
                offenders.append(f"{module}:{node.lineno}: match {ast.unparse(node.subject)}")
    assert_none(offenders)


def classes(module: ModuleType) -> list[type]:
    members = inspect.getmembers(module, inspect.isclass)
    return [kind for _, kind in members if kind.__module__ == module.__name__]


def test_a_method_or_objective_is_one_final_frozen_dataclass() -> None:
    offenders = []
    for folder, base in (("methods", Method), ("objectives", Objective)):
        for name in registry.names(folder):
            module = import_module(f"coterie.{folder}.{name}")
            kinds = [kind for kind in classes(module) if issubclass(kind, base)]
            if len(kinds) != 1:
                offenders.append(f"{folder}.{name} has {len(kinds)} classes of {base.__name__}")
                continue
            (kind,) = kinds
            frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
            parents = [parent for parent in kind.__mro__[1:] if issubclass(parent, base)]
            wrong = {
                "is not @final": not getattr(kind, "__final__", False),
                "is not a frozen dataclass": not frozen,
                f"inherits from {parents[0].__name__}": parents != [base],
                "lacks a docstring with the paper and the equation": not inspect.getdoc(module),
            }
            offenders += [f"{folder}.{name} {what}" for what, is_so in wrong.items() if is_so]
    assert_none(offenders)


def test_a_method_has_a_page_an_oracle_and_a_configuration() -> None:
    configured = {
        tomllib.loads((CONFIGS / f"{config}.toml").read_text())["method"]["name"]
        for config in shipped()
    }
    offenders = []
    for name in registry.names("methods"):
        page = PROJECT / "docs" / "methods" / f"{name}.md"
        oracle = PROJECT / "tests" / "oracles" / f"test_{name}.py"
        offenders += [f"{path} is missing" for path in (page, oracle) if not path.is_file()]
        offenders += [] if name in configured else [f"no configuration runs {name}"]
    assert_none(offenders)


def test_a_shipped_configuration_opens_with_its_command() -> None:
    first_lines = {
        name: (CONFIGS / f"{name}.toml").read_text().splitlines()[0] for name in shipped()
    }
    assert_none(
        f"{name}: {line}"
        for name, line in first_lines.items()
        if not line.startswith(f"# coterie run {name}")
    )
