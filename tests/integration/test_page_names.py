"""What a page quotes exists: files, names of the package, configuration keys, commands, options."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import coterie
import pages
from coterie.cli.main import app
from coterie.core import registry
from coterie.experiment.config import load, resolve
from coterie.experiment.tables import parse_overrides
from pages import PACKAGE, PAGES, ROOT, SHELL

HISTORY = ROOT / "CHANGELOG.md"  # speaks of names that are gone
CURRENT = [page for page in PAGES if page != HISTORY]
LEFT_BY_RUNS = {"config.toml", "table.md"}
EXAMPLE = "fedlerp"  # the walk-through's method, which is in no file
FILE = re.compile(r"[\w./-]*\w\.(?:py|c|h|toml|md|sh)")
DOTTED = re.compile(r"[a-z]+(\.[a-z_]\w*)+")
LEFT = re.compile(r"\.(html|json|jsonl|py|safetensors|toml)$")  # files, not dotted names
TABLES = {table: set(values) for table, values in resolve({}).tables.items()}
ROOMS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
# What a page calls by the name of a table, and is an object of that kind.
OBJECTS = {
    "method": ["Method", "FederatedEvaluator"],
    "objective": ["Objective"],
    "net": ["Network", "Frozen"],
    "data": ["Shard", "DataShard"],
    "local": ["Local"],
}
CLASS = re.compile(r"([A-Z][a-z]+[A-Za-z]*|[A-Z]{2,}[a-z][A-Za-z]*)(?:\.(\w+))?(?:\(.*\))?")


# of Python, numpy, Hugging Face's `datasets`, FedProc's authors
OTHERS = {"None", "True", "False", "NaN", "Philox", "ClassLabel", "SupConLoss"}


def names() -> Iterator[tuple[Path, str]]:
    """What is in backticks on the pages."""
    for page in CURRENT:
        for text in pages.quoted(page):
            yield page, text


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """The words behind `coterie` wherever a page has a command, and where it is."""
    for block in pages.all_blocks(*SHELL):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words and words[0] == "coterie":
                yield block.place, words[1:]
    for page in CURRENT:
        for text in pages.quoted(page, without=pages.BAD_INPUT):
            if text.startswith("coterie ") and " " in text.strip() and "..." not in text:
                yield pages.name(page), shlex.split(text)[1:]


def test_every_command_can_be_read(own_files: Path) -> None:
    """Words in capitals stand for something of the reader's: of those only options are checked."""
    wrong = []
    program = typer.main.get_command(app)
    for place, words in command_lines():
        try:
            _read(program, words)
        except Exception as error:
            wrong.append(f"{place}: coterie {shlex.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


def _read(program: Any, words: list[str]) -> None:
    if not words or words[0].startswith("-"):
        known = {opt for option in program.params for opt in option.opts} | {"-h", "--help"}
        assert len(words) == 1 and words[0] in known
        return
    command = program.commands[words[0]]
    if hasattr(command, "commands"):  # of commands of its own, as `deploy`
        _read(command, words[1:])
        return
    placeholder = any(re.fullmatch(r"[A-Z]{2,}\w*|\[.*", word) for word in words[1:])
    given = [word for word in words[1:] if word.startswith("--")]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert set(given) <= known, f"there is no option {set(given) - known}"
    if placeholder or len(words) == 1:
        return
    with command.make_context(words[0], list(words[1:])) as context:
        arguments = context.params.get("arguments") or []
    if words[0] in ("run", "partition") and "--resume" not in words:
        source = arguments[0] if arguments and "=" not in arguments[0] else None
        # the file of weights is one that another command of the page writes
        keys = (w for w in arguments if "=" in w and not w.startswith("net.weights="))
        load(source, parse_overrides(keys))


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that pages tell their reader to save."""
    for file, text in pages.saved_files().items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_file_exists() -> None:
    own = {*pages.saved_files(), *LEFT_BY_RUNS}
    wrong = []
    for page, text in names():
        if not FILE.fullmatch(text) or text in own or re.search(rf"[A-Z]{{3,}}|{EXAMPLE}", text):
            continue
        roots = (ROOT, ROOT / "src", PACKAGE, page.parent)
        if any((root / text).exists() for root in roots):
            continue
        if "/" in text or not any(f for root in (PACKAGE, page.parent) for f in root.rglob(text)):
            wrong.append(f"{pages.name(page)}: {text}")
    assert not wrong, "\n".join(wrong)


@cache
def classes() -> dict[str, set[str]]:
    """By class of the package and of its tests' examples: the names in its body and its bases'."""
    found: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name] = set(members(node))
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:  # names of types, such as those in core/fields.py
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, set())
    for name, above in bases.items():
        for base in above:
            found[name] |= found.get(base, set())
    return found


def members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            yield item.name
            for inner in ast.walk(item):
                if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "self":
                    yield inner.attr
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.Assign):
            yield from (target.id for target in item.targets if isinstance(target, ast.Name))


def test_every_class_exists() -> None:
    wrong = []
    for page, text in names():
        if (match := CLASS.fullmatch(text)) and match[1] not in OTHERS:
            name, attribute = match[1], match[2]
            if name not in classes() or (attribute and attribute not in classes()[name]):
                wrong.append(f"{pages.name(page)}: {text}")
    assert not wrong, "\n".join(wrong)


def test_every_key_and_module_exists() -> None:
    wrong = []
    for page, text in names():
        match = DOTTED.match(text)
        if match and not LEFT.search(match[0]) and not known(match[0]):
            wrong.append(f"{pages.name(page)}: {text}")
    assert not wrong, "\n".join(wrong)


def known(path: str) -> bool:
    """Whether it is a key, a part of an object that is called like a table, or in the package."""
    first, second = path.split(".")[:2]
    if first not in {*TABLES, *ROOMS, "coterie"}:
        return True
    if second in keys(first) or any(second in classes()[kind] for kind in OBJECTS.get(first, ())):
        return True
    roots = ("",) if first == "coterie" else ("coterie.", "coterie.engine.")
    return any(importable(root + path) for root in roots)


@cache
def keys(table: str) -> set[str]:
    """The keys of a table, whatever class it names."""
    found = set(TABLES.get(table, ()))
    for chosen in registry.names("data/partitions") if table == "partition" else ():
        found |= set(resolve({table: {"kind": chosen}}).tables[table])
    bases: dict[str, type] = {"method": coterie.Method, "objective": coterie.Objective}
    for chosen in registry.names(f"{table}s") if table in bases else ():
        kind: Any = registry.find(f"{table}s", chosen, bases[table], f"{table}.name")
        found |= {field.name for field in fields(kind)} | set(getattr(kind, "aliases", ()))
    return found


@cache
def importable(path: str) -> bool:
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_a_sketch_has_the_names_of_the_code() -> None:
    wrong = []
    for block in pages.all_blocks("python"):
        if "shape only" not in block.marks:
            continue
        for node in ast.parse(block.text).body:
            if isinstance(node, ast.ClassDef):
                missing = set(members(node)) - classes().get(node.name, set())
                if node.name not in classes() or missing:
                    wrong.append(f"{block.place}: {node.name}: {missing or 'is gone'}")
    assert not wrong, "\n".join(wrong)


def test_a_name_is_in_the_file_that_is_named_beside_it() -> None:
    wrong = []
    beside = re.compile(r"`(\w+)`(?:, | \(| in | of )`((?:\w+/)*\w+\.py)`")
    for page in CURRENT:
        for name, file in beside.findall(pages.prose(page)):
            paths = [root / file for root in (PACKAGE, ROOT, page.parent) if (root / file).exists()]
            if paths and not re.search(rf"\b{name}\b", paths[0].read_text()):
                wrong.append(f"{pages.name(page)}: {name} is not in {file}")
    assert not wrong, "\n".join(wrong)


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    wrong = [
        f"{block.place}: make {target}"
        for block in pages.all_blocks(*SHELL)
        for target in re.findall(r"^make ([a-z-]+)", block.text, re.M)
        if target not in targets
    ]
    wrong += [
        f"{pages.name(page)}: {text}"
        for page, text in names()
        if (match := re.match(r"make ([a-z-]+)", text)) and match[1] not in targets
    ]
    assert not wrong
