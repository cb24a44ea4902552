"""Renew the generated lists and signatures of the pages: `python docs/lists.py`.

A list stands between two comments, the second of which is `<!-- end -->`:

    <!-- nets: generated -->                         the names of a kind
    <!-- methods: generated table -->                also the line that `coterie list` shows of each
    <!-- names of coterie.kit: generated -->         a table of what a module exports
    <!-- signatures of coterie.run: generated -->    code, also of several names, or of a module
    <!-- functions of coterie.kit: generated -->     the same of the functions of a module
    <!-- keys of methods: generated -->              the keys of a table, or of each part of a kind
    <!-- options of coterie: generated -->           the commands with their options
    <!-- curve of moon: generated -->                the curve of a page, with its numbers

Names that have a page of their own become links to it. `signatures.py` writes the names, signatures
and functions, `keys.py` the keys, `options.py` the options and `curves.py` the curves.
"""

import os
import re
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path

from coterie.cli.listing import entries
from coterie.data.augment import AUGMENTS

ROOT = Path(__file__).parents[1]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
WIDTH = 118
LIST = re.compile(r"(<!-- (\w+): generated( table)? -->)(\n?).*?(<!-- end -->)", re.S)
CODE = re.compile(r"(<!-- (\w+) of ([\w. ]+): generated -->\n).*?(<!-- end -->)", re.S)


def load(file: str) -> Callable[..., str]:
    """Load the function of a script beside this one that writes what a comment asks for."""
    write: Callable[..., str] = runpy.run_path(str(Path(__file__).with_name(file)))["write"]
    return write


WRITE_SIGNATURES = load("signatures.py")
WRITERS = {
    "keys": load("keys.py"),
    "options": load("options.py"),
    "curve": load("curves.py"),
}


def find_names(kind: str) -> dict[str, str]:
    """The names of a kind with a line about each."""
    return dict.fromkeys(AUGMENTS, "") if kind == "augmentations" else entries(kind)


def write_name(page: Path, kind: str, name: str) -> str:
    """A name as a page shows it."""
    own = ROOT / "docs" / kind / f"{name}.md"
    return f"[`{name}`]({os.path.relpath(own, page.parent)})" if own.exists() else f"`{name}`"


def split(about: str) -> tuple[str, str]:
    """A line such as `MOON: what it does (Li, CVPR 2021).` as what it does and the paper."""
    paper = re.search(r" \((.*)\)", about)
    text = about.replace(paper[0], "") if paper else about
    return text.partition(": ")[2].rstrip("."), paper[1] if paper else ""


def write_list(page: Path, match: re.Match[str]) -> str:
    """What stands between two comments, with them."""
    start, kind, table, line, end = match.groups()
    names = {write_name(page, kind, name): about for name, about in find_names(kind).items()}
    if table:
        head = [f"| {kind.removesuffix('s')} | what it is | paper |", "|---|---|---|"]
        rows = [f"| {name} | {' | '.join(split(about))} |" for name, about in names.items()]
        return "\n".join([start, *head, *rows, end])
    if not line:  # in a cell, or in the middle of a sentence
        return f"{start}{', '.join(names)}{end}"
    text = textwrap.fill(", ".join(names), WIDTH, break_on_hyphens=False, break_long_words=False)
    return f"{start}\n{text}\n{end}"


def write_signatures(match: re.Match[str]) -> str:
    """What stands between two comments that ask for signatures, keys or options, with them."""
    start, what, names, end = match.groups()
    text = WRITERS[what](names) if what in WRITERS else WRITE_SIGNATURES(what, names)
    return f"{start}\n{text}\n\n{end}"


def renew(page: Path) -> str:
    """The text of a page with its lists and signatures as they should be."""
    text = LIST.sub(lambda match: write_list(page, match), page.read_text())
    return CODE.sub(write_signatures, text)


def main() -> None:
    """Write the pages whose lists have changed, and say which."""
    for page in PAGES:
        text = renew(page)
        if text != page.read_text():
            page.write_text(text)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
