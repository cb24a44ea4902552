"""The stations of a task on the design page are in the code, with the numbers of the steps."""

import ast
import re
from pathlib import Path

from coterie.engine import loop, play, site

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"
STATION = re.compile(r" ?(\d+(?:\.\d+)?) +(\S+\.py) +(\S+) ")
STEPS = 12


def stations() -> list[tuple[str, str, str]]:
    """Number, file and function of every station, in the order of the page."""
    page = (ROOT / "docs" / "design.md").read_text()
    drawing = page.split("## The way of one task")[1].split("```")[1]
    return [match.groups() for line in drawing.splitlines() if (match := STATION.match(line))]


def functions(file: Path) -> set[str]:
    """The functions of a file, those of a class behind its name."""
    defined = set()
    for node in ast.parse(file.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        defined |= {f"{prefix}{n.name}" for n in inside if isinstance(n, ast.FunctionDef)}
    return defined


def test_every_station_is_a_function_of_its_file() -> None:
    wrong = [
        f"{number} {file} {function}"
        for number, file, function in stations()
        if function not in functions(PACKAGE / file)
    ]
    assert not wrong


def test_the_stations_are_in_order_and_none_of_the_steps_is_missing() -> None:
    numbers = [tuple(map(int, number.split("."))) for number, _, _ in stations()]
    assert numbers == sorted(set(numbers))
    assert [n[0] for n in numbers if len(n) == 1] == list(range(1, STEPS + 1))


def test_the_steps_stand_as_comments_in_the_code() -> None:
    steps = {loop: {1, 2, 3, 10, 11, 12}, play: {4, 8, 9}, site: {5, 6, 7}}
    for module, numbers in steps.items():
        comments = re.findall(r"  # (\d[^\n]*)", Path(str(module.__file__)).read_text())
        said = {int(number) for comment in comments for number in re.findall(r"\d+", comment)}
        assert said >= numbers, module.__name__
