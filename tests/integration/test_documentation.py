"""The documentation is true: its code runs, its commands parse, its links and keys exist."""

import ast
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.cli.listing import entries
from coterie.cli.main import app
from coterie.core import registry
from coterie.core.errors import CoterieError, DataError
from coterie.core.settings import NetSettings
from coterie.evaluate import ALIASES
from coterie.experiment.config import resolve
from coterie.experiment.tables import CONFIGS, shipped

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDES = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]
EXECUTED = [ROOT / "README.md", ROOT / "docs" / "own-data.md"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NAMED_IN_README = ("methods", "objectives", "nets", "datasets", "partitions", "evaluators")

LONG = ("doctor", "compare", "sweep", "reproduce", "download")

Keys = dict[str, Any]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def block(page: Path, language: str, opening: str) -> str:
    """The one block that opens with a line."""
    (found,) = (text for text in blocks(page, language) if text.startswith(opening))
    return found


def contributed(opening: str, language: str = "python") -> str:
    return block(ROOT / "CONTRIBUTING.md", language, opening)


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the user's own modules and files that the pages speak of."""
    evaluator = block(ROOT / "docs" / "evaluation.md", "python", "# my_evaluators.py")
    sources = {
        "my_methods.py": contributed("# src/coterie/methods/fedlerp.py"),
        "my_evaluators.py": evaluator,
        "my.toml": block(ROOT / "docs" / "configuration.md", "toml", "# my.toml"),
    }
    for file, text in sources.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in sources:
        sys.modules.pop(Path(file).stem, None)


@pytest.mark.slow
def test_the_method_of_the_walk_through_gives_the_same_bits_everywhere(own_modules: Path) -> None:
    digests = set()
    for kind in ("serial", "processes"):
        result = coterie.run(
            "digits/fedavg",
            out=own_modules / kind,
            run={"rounds": 2},
            local={"epochs": 1},
            method={"name": "my_methods:FedLerp"},
            executor={"kind": kind, "workers": 2},
        )
        last = result.history[-1]
        assert not last.rejected and not last.lost
        assert "train_loss_teacher" in last.metrics
        digests.add((last.digest, last.states))
    assert len(digests) == 1


@pytest.mark.slow
def test_the_method_of_the_walk_through_has_fedavg_as_its_zero(own_modules: Path) -> None:
    digests = {
        coterie.run(
            "digits/fedavg",
            out=own_modules / chosen["name"].replace(":", "-"),
            run={"rounds": 2},
            local={"epochs": 1},
            method=chosen,
            executor={"kind": "serial"},
        )
        .history[-1]
        .digest
        for chosen in ({"name": "fedavg"}, _zero())
    }
    assert len(digests) == 1


def _zero() -> Keys:
    """The zero setting that CONTRIBUTING gives for the conformance suite."""
    (text,) = re.findall(r'"fedlerp": (\{.*?\})', (ROOT / "CONTRIBUTING.md").read_text())
    return {"name": "my_methods:FedLerp", **ast.literal_eval(text)}


def test_the_oracle_of_the_walk_through_passes(own_modules: Path) -> None:
    oracle = contributed("# tests/oracles/test_fedlerp.py")
    (own_modules / "oracle.py").write_text(oracle.replace("coterie.methods.fedlerp", "my_methods"))
    found = runpy.run_path(str(own_modules / "oracle.py"))
    tests = [value for key, value in found.items() if key.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_the_configuration_of_the_walk_through_is_valid(own_modules: Path) -> None:
    tables = tomllib.loads(contributed("# coterie run digits/fedlerp", "toml"))
    fedavg = tomllib.loads((CONFIGS / "digits" / "fedavg.toml").read_text())
    assert {**tables, "method": None} == {**fedavg, "method": None}
    tables["method"]["name"] = "my_methods:FedLerp"
    assert resolve(tables).tables["method"] == tables["method"]


@pytest.mark.parametrize(
    "file", ["src/coterie/methods/fedlerp.py", "tests/oracles/test_fedlerp.py"]
)
def test_the_code_of_the_walk_through_has_the_house_style(file: str) -> None:
    ours = "lint.isort.known-first-party = ['coterie']"  # the file is not where it says it is
    for check in (["check", "--config", ours], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, "--stdin-filename", file, "-"]
        text = contributed(f"# {file}")
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in EXECUTED for number in range(len(blocks(page, "python")))],
    ids=lambda value: name(value) if isinstance(value, Path) else str(value),
)
def test_python_on_a_page_runs_as_it_is(
    page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page, "python")[number], name(page), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_on_a_page_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.slow
def test_the_evaluator_on_its_page_works(own_modules: Path) -> None:
    result = coterie.run(
        "digits/fedavg",
        out=own_modules / "run",
        run={"rounds": 1},
        local={"epochs": 1},
        evaluate={"with": ["my_evaluators:Spread"]},
        executor={"kind": "serial"},
    )
    assert result.metrics["norm_worst"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(example)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") >= 2
    assert not list(tmp_path.iterdir())


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `coterie` line in the shell blocks of a page."""
    found = []
    for text in blocks(page, "sh"):
        for line in text.splitlines():
            words = [w for w in shlex.split(line, comments=True) if not w.startswith("PYTHONPATH=")]
            if words and words[0] == "coterie":
                found.append(words[1:])
    return found


@pytest.mark.parametrize("page", [page for page in GUIDES if commands(page)], ids=name)
def test_every_command_on_a_page_can_be_given(page: Path, own_modules: Path) -> None:
    own_data = block(ROOT / "docs" / "own-data.md", "python", "import numpy as np\n\ngenerator")
    exec(own_data, {})  # writes the file that the commands read
    for words in commands(page):
        if words[0] in LONG:  # they start runs, or take long: see that the command exists
            assert app([words[0], "--help"], standalone_mode=False) == 0
            continue
        dry = ["--dry-run"] if words[0] == "run" and "--dry-run" not in words else []
        try:
            app([*words, *dry], standalone_mode=False)
        except DataError as error:  # the configuration is fine, its files are not on this machine
            assert "was not found" in str(error) or "is not a folder" in str(error)


def test_bad_input_is_answered_as_the_page_says() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    rows = re.findall(r"^\| `coterie (run .*?)` \| `(.*?)` \|$", page, re.M)
    assert len(rows) >= 4
    for command, answer in rows:
        with pytest.raises(CoterieError) as raised:
            app([*shlex.split(command), "--dry-run"], standalone_mode=False)
        assert str(raised.value) == answer


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith("https://"):
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{name(page)} links to {target}"
        assert place.is_relative_to(ROOT)
        assert not anchor or anchor in headings(place), f"{name(page)}: {target}#{anchor}"


def test_every_page_is_on_the_map() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name == "index.md" or f"({page.relative_to(ROOT / 'docs')})" in text


def documented() -> dict[str, Keys]:
    """By heading of the configuration page: the keys in its tables with their defaults."""
    found: dict[str, Keys] = {}
    heading = ""
    for line in (ROOT / "docs" / "configuration.md").read_text().splitlines():
        if title := re.fullmatch(r"##+ (.*)", line):
            heading = title[1]
        elif row := re.match(r"\| `(\w+)` \| `(.*?)` \|", line):
            found.setdefault(heading, {})[row[1]] = tomllib.loads(f"value = {row[2]}")["value"]
    return found


def test_every_key_is_documented_with_its_default() -> None:
    chosen = {"partition": "kind", "objective": "name", "method": "name"}
    expected: dict[str, Keys] = {}
    for table, values in resolve({}).tables.items():
        only = chosen.get(table)
        if table == "net":  # what it comes to depends on the machine
            values = {**values, "kernel": NetSettings().kernel}
        expected[f"[{table}]"] = {only: values[only]} if only else values
    for table, folder in (("partition", "data/partitions"), ("objective", "objectives")):
        for kind in registry.names(folder):
            values = dict(resolve({table: {chosen[table]: kind}}).tables[table])
            del values[chosen[table]]
            if values:
                expected[kind] = values
    assert documented() == expected


def test_every_field_of_an_evaluator_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text()
    found: dict[tuple[str, str], Any] = {}
    for field, owners, default in re.findall(r"^\| `(\w+)` \| (`.*?`) \| `(.*?)` \|", page, re.M):
        value = tomllib.loads(f"value = {default}")["value"]
        found |= {(owner, field): value for owner in re.findall(r"`(\w+)`", owners)}
    evaluators = resolve({}, {"evaluate": {"with": [*registry.names("evaluate")]}}).evaluators
    values: dict[str, Any] = dict(evaluators)
    expected = {(name, key): v for name, one in values.items() for key, v in asdict(one).items()}
    assert found == {pair: value for pair, value in expected.items() if pair[1] != "key"}


def test_every_short_name_of_an_evaluator_is_documented_with_its_entry() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\{.*\})` \|$", page, re.M)
    assert {short: tomllib.loads(f"entry = {text}")["entry"] for short, text in rows} == ALIASES


@pytest.mark.parametrize("method", registry.names("methods"))
def test_every_method_has_a_page_with_its_keys(method: str) -> None:
    page = (ROOT / "docs" / "methods" / f"{method}.md").read_text()
    kind = registry.find("methods", method, coterie.Method, "method.name")
    for key in (field.name for field in fields(kind)):
        named = re.search(rf"`(method\.)?{key}`", page)
        assert named, f"docs/methods/{method}.md does not name {key}"
    assert f"`{method}`" in (ROOT / "docs" / "privacy.md").read_text()


def test_the_readme_names_what_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    for kind in NAMED_IN_README:
        for found in entries(kind):
            assert f"`{found}`" in text, f"README.md does not name {found} of {kind}"


def test_every_shipped_configuration_opens_with_its_command() -> None:
    for config in shipped():
        first = (CONFIGS / f"{config}.toml").read_text().splitlines()[0]
        assert first.startswith(f"# coterie run {config}")


def test_every_public_name_can_be_imported() -> None:
    for public in coterie.__all__:
        assert getattr(import_module("coterie"), public) is not None
