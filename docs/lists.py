"""Renew the generated lists of the pages: `python docs/lists.py`.

A list stands between two comments, `<!-- nets: generated -->` and `<!-- end -->`. With
`<!-- methods: generated table -->` it is a table with the line that `coterie list` shows of each.
Names that have a page of their own become links to it.
"""

import os
import re
import textwrap
from pathlib import Path

from coterie.cli.listing import entries
from coterie.data.augment import AUGMENTS

ROOT = Path(__file__).parents[1]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
WIDTH = 118
LIST = re.compile(r"(<!-- (\w+): generated( table)? -->)(\n?).*?(<!-- end -->)", re.S)


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


def renew(page: Path) -> str:
    """The text of a page with its lists as they should be."""
    return LIST.sub(lambda match: write_list(page, match), page.read_text())


def main() -> None:
    """Write the pages whose lists have changed, and say which."""
    for page in PAGES:
        text = renew(page)
        if text != page.read_text():
            page.write_text(text)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
