"""The pages of the project: their blocks of code, the marks before them, what is in backticks.

A block is run unless a comment on the line before its fence says otherwise. GitHub does not show
such comments. There may be several, one a line:

    <!-- not run: REASON -->          it needs what a test does not have
    <!-- shape only -->               a sketch of an interface: its names are compared with the code
    <!-- tested by: test_NAME -->     another test runs it
    <!-- save as: FILE -->            it is a file, which lies in the folder of every page
    <!-- run with: WORD... -->        words behind each `coterie` command of it

`python tests/pages.py` lists the marks of all pages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "coterie"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)

SHELL = ("sh", "bash", "console")
MARKS = ("not run", "shape only", "tested by", "save as", "run with")
BAD_INPUT = re.compile(r"^\| `coterie (run .*?)` \| `(.*?)` \|$", re.M)  # a command, its error
_LONELY = (
    "not run",
    "shape only",
    "tested by",
    "save as",
)  # with one of them a block is not executed

_FENCE = re.compile(r" *```(.*)")
_MARK = re.compile(r" *<!-- ([a-z ]+?)(?:: (.*?))? -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int  # of the fence, counted from 1
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Page and line, as editors take them."""
        return f"{name(self.page)}:{self.line}"

    @property
    def executed(self) -> bool:
        """Whether it is run where it stands."""
        return not any(mark in self.marks for mark in _LONELY)


def name(page: Path) -> str:
    """The page's path within the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    marks: dict[str, str] = {}
    for number, line in lines:
        if mark := _MARK.fullmatch(line):
            marks[mark[1]] = mark[2] or ""
        elif fence := _FENCE.fullmatch(line):
            text = ""
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                text += f"{inner}\n"
            yield Block(page, number, fence[1].strip(), text, marks)
            marks = {}
        else:
            marks = {}


def all_blocks(*languages: str) -> Iterator[Block]:
    """The blocks of all pages that are in one of these languages, or all of them."""
    for page in PAGES:
        for block in blocks(page):
            if not languages or block.language in languages:
                yield block


def saved_files() -> dict[str, str]:
    """The files that pages tell their reader to save."""
    files: dict[str, str] = {}
    for block in all_blocks():
        file = block.marks.get("save as")
        if file and files.setdefault(file, block.text) != block.text:
            raise ValueError(f"{block.place}: {file} has another text elsewhere")
    return files


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)


def quoted(page: Path, without: re.Pattern[str] | None = None) -> list[str]:
    """What is in backticks on a page, outside of blocks; line breaks are spaces."""
    text = without.sub("", prose(page)) if without else prose(page)
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [" ".join(text.replace("\\|", "|").split()) for text in found]


if __name__ == "__main__":
    for marked in all_blocks():
        for mark, said in marked.marks.items():
            print(f"{marked.place}: {mark}: {said}" if said else f"{marked.place}: {mark}")
