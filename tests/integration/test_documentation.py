"""The documentation is true: its links lead somewhere, its keys exist."""

import ast
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import coterie
import pages
from coterie.cli.listing import entries
from coterie.cli.main import app
from coterie.core import registry
from coterie.core.errors import CoterieError
from coterie.core.settings import NetSettings
from coterie.evaluate import ALIASES
from coterie.experiment.config import resolve
from coterie.experiment.tables import CONFIGS, shipped
from pages import PAGES, ROOT, name

NAMED_IN_README = ("methods", "objectives", "nets", "datasets", "partitions", "evaluators")

SITE = runpy.run_path(str(ROOT / "docs" / "site.py"))

Keys = dict[str, Any]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_on_a_page_is_python(page: Path) -> None:
    for block in pages.blocks(page):
        if block.language == "python":
            ast.parse(block.text)


def test_bad_input_is_answered_as_the_page_says() -> None:
    rows = pages.BAD_INPUT.findall((ROOT / "docs" / "running.md").read_text())
    assert len(rows) >= 4
    for command, answer in rows:
        with pytest.raises(CoterieError) as raised:
            app([*shlex.split(command), "--dry-run"], standalone_mode=False)
        assert str(raised.value) == answer


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", pages.prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_line_of_a_sentence_looks_like_the_item_of_a_list(page: Path) -> None:
    lines = pages.prose(page).splitlines()
    item = re.compile(r"\s*(?:[-*+]|\d+\.) ")
    for before, line in pairwise(lines):
        inside = (
            before.strip() and not item.match(before) and not before.startswith((" ", "<", "|"))
        )
        assert not (inside and item.match(line)), line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith("https://"):
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{name(page)} links to {target}"
        assert place.is_relative_to(ROOT)
        assert not anchor or anchor in headings(place), f"{name(page)}: {target}#{anchor}"


def listed(nav: Any) -> Iterator[str]:
    """The pages of a navigation, in order."""
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from listed(entry)


def test_the_site_has_every_page_once_under_seven_headings() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert [title for entry in nav for title in entry] == [
        *("Start", "Tutorial", "How-to", "Methods", "Reference", "Results", "Inside")
    ]
    found = list(listed(nav))
    own = [name(page) for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))]
    assert len(found) == len(set(found)) and set(own) <= set(found)
    assert all((ROOT / page).is_file() for page in found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_link_leads_to_a_file_which_the_site_can_copy(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert not [t for t in targets if "://" not in t and not (page.parent / t).is_file()]


def test_a_built_page_that_is_not_whole_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITE["check_link"].__globals__, "SITE", tmp_path)
    (tmp_path / "b.html").write_text('<h2 id="there">b</h2>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">fine</a><a href="https://example.org">fine</a>'
        '<a href="b.html#gone">b</a><a href="c.html">c</a><a href="../d.html">d</a>'
        '<script src="https://example.org/x.js"></script><link rel="stylesheet" href="//e.org/y">'
        "<style>@import 'https://e.org/z';</style><p>Three:\n- a list</p><pre><p>\n- code</pre>"
    )
    assert list(SITE["check"](tmp_path / "a.html")) == [
        "links to b.html#gone, an anchor that is not there",
        "links to c.html",
        "links to ../d.html",
        "fetches https://example.org/x.js",
        "fetches //e.org/y",
        "has a style that is fetched from the network",
        "shows a list or a table as text: '<p>Three: -'",
    ]
    assert not list(SITE["check"](tmp_path / "b.html"))


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
            values = {
                **values,
                **{key: getattr(NetSettings(), key) for key in ("kernel", "precision")},
            }
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


def _read(text: str) -> Any:
    """A value as pages write it: TOML, or words where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text == "none" else text


@pytest.mark.parametrize("kind", ["method", "objective"])
def test_the_pages_give_every_key_its_default(kind: str) -> None:
    base = {"method": coterie.Method, "objective": coterie.Objective}[kind]
    wrong = []
    for chosen in registry.names(f"{kind}s"):
        page = ROOT / "docs" / f"{kind}s" / f"{chosen}.md"
        values: Any = registry.find(f"{kind}s", chosen, base, f"{kind}.name")()
        rows = (
            re.findall(rf"^\| `{kind}\.(\w+)` \| `?(.*?)`? \|", page.read_text(), re.M)
            if page.exists()
            else ()
        )
        for key, said in rows:
            aliases = getattr(values, "aliases", {})
            if key not in aliases and _read(said) != getattr(values, key):
                wrong.append(f"{name(page)}: {key} is {getattr(values, key)!r}, not {said}")
    assert not wrong


def test_the_readme_is_short_and_names_what_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for kind in NAMED_IN_README:
        for found in entries(kind):
            assert f"`{found}`" in text, f"README.md does not name {found} of {kind}"


def test_the_lists_on_pages_are_those_of_the_package() -> None:
    lists = runpy.run_path(str(ROOT / "docs" / "lists.py"))
    stale = [name(page) for page in lists["PAGES"] if lists["renew"](page) != page.read_text()]
    assert not stale, f"renew them: python docs/lists.py ({', '.join(stale)})"


def section(page: Path, heading: str) -> str:
    """The part of a page below a heading, up to the next one of any level."""
    return page.read_text().partition(f"# {heading}\n")[2].partition("\n#")[0]


def test_the_page_for_python_has_every_public_name() -> None:
    """The lists are made from the source; these are the names that a program finds."""
    page = ROOT / "docs" / "python.md"
    for module, exported in (("coterie", coterie.__all__), ("coterie.kit", coterie.kit.__all__)):
        heading = "Kit" if module == "coterie.kit" else f"All names of `{module}`"
        rows = re.findall(r"^\| `(\w+)` \| \S", section(page, heading), re.M)
        assert set(rows) == set(exported) - {"__version__"}
    for shown in (coterie.Result, coterie.History):
        members = {name for name in dir(shown) if not name.startswith("_")}
        if shown is coterie.History:
            members -= set(dir(Sequence))
        text = section(page, shown.__name__)
        missing = [name for name in members if not re.search(rf"^    (def )?{name}\b", text, re.M)]
        assert not missing, shown


def test_signatures_on_a_page_have_at_most_100_columns() -> None:
    page = ROOT / "docs" / "python.md"
    lines = [line for b in pages.blocks(page) if not b.executed for line in b.text.splitlines()]
    assert lines and not [line for line in lines if len(line) > 100]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "methods.md"], ids=name)
def test_a_cell_has_at_most_a_dozen_words(page: Path) -> None:
    rows = [line for line in pages.prose(page).splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in re.sub(r"\]\([^)]*\)", "]", row)[1:-1].split("|")]
    assert not [cell for cell in cells if len(cell.split()) > 12]


def test_what_was_measured_stands_on_the_page_that_is_linked() -> None:
    """Every number of an outcome on the page of choices, so that a renewed table is noticed."""
    page = ROOT / "docs" / "choosing.md"
    wrong = []
    for row in re.findall(r"^\|.*\]\(\.\./benchmarks.*\|$", page.read_text(), re.M):
        _, said, where = (cell.strip() for cell in row.strip("|").split("|"))
        targets = re.findall(r"\]\((.*?)\)", where)
        texts = " ".join((page.parent / target).read_text() for target in targets)
        numbers = re.findall(r"\d+\.\d+", said)
        assert numbers, row
        wrong += [f"{number}: {said}" for number in numbers if number not in texts]
    assert not wrong, "\n".join(wrong)


def test_every_key_is_in_the_reference() -> None:
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \|", (ROOT / "docs" / "reference.md").read_text(), re.M)
    chosen = {("partition", "kind"), ("objective", "name"), ("method", "name")}
    tables = resolve({}).tables.items()
    assert {(table, key) for table, values in tables for key in values} <= {*rows, *chosen}


def test_the_tables_of_a_page_have_a_row_for_everything() -> None:
    """The pages with more to say of each than a generated list: nothing is missing or gone."""
    kinds = {"methods.md": "methods", "datasets.md": "datasets", "augmentation.md": "augmentations"}
    names = runpy.run_path(str(ROOT / "docs" / "lists.py"))["find_names"]
    for page, kind in kinds.items():
        text = (ROOT / "docs" / page).read_text()
        rows = re.findall(r"^\| \[?`([\w-]+)`(?:\]\(.*?\))? \|.*\|.*\|.*\|", text, re.M)
        if kind == "augmentations":
            rows = re.findall(r"^\| `([\w-]+)` \|", text, re.M)
        assert set(rows) == set(names(kind)), page


def test_the_page_of_partitions_has_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "partitions.md").read_text().partition("## Kinds")[2]
    rows = dict(
        re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", text.partition("**`iid`**")[0], re.M)
    )
    common = {"kind", "skew", "strength", "label_swap"}
    for kind in registry.names("data/partitions"):
        keys = resolve({"partition": {"kind": kind}}).tables["partition"]
        said = {
            k: tomllib.loads(f"v = {v}")["v"] for k, v in re.findall(r"`(\w+)` ([^,]+)", rows[kind])
        }
        assert said == {key: value for key, value in keys.items() if key not in common}
    assert set(rows) == set(registry.names("data/partitions"))


def test_every_shipped_configuration_opens_with_its_command() -> None:
    for config in shipped():
        first = (CONFIGS / f"{config}.toml").read_text().splitlines()[0]
        assert first.startswith(f"# coterie run {config}")


def test_every_public_name_can_be_imported() -> None:
    for public in coterie.__all__:
        assert getattr(import_module("coterie"), public) is not None
