"""Build the documentation as a site and check it: `python docs/site.py`, or `make docs`.

The pages and the files that they link to are copied to `.site`, in the places that they have in
the repository, so that a link works both on GitHub and in the site. `zensical.toml` has the rest.
What is wrong is listed and is an error: a link or an anchor that leads nowhere, a list or a table
that Python's Markdown takes for text, and anything that a browser would fetch from the network.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
SOURCE, SITE = ROOT / ".site", ROOT / "site"
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md"))
WORKER, SHIM = Path(__file__).with_name("worker.js"), "https://unpkg.com/iframe-worker/shim"
STYLE = Path(__file__).with_name("site.css")
LINK = re.compile(r"\]\(([^)#\s]+)")
FETCHING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
SAVED = ("canonical", "alternate", "prev", "next")  # relations of <link> that are not fetched
STYLES = re.compile(r"(?:@import\s+|url\()[\"']?(?:https?:)?//", re.I)
LOOKS_PLAIN = re.compile(r"<p>(?:(?!</p>).)*?\n(?:- |\d+\. |\|)", re.S)


def copy_pages() -> None:
    """Copy the pages, and the files that they link to or show, into an empty folder."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    linked = {file for page in PAGES for file in list_linked(page)}
    for file in {*PAGES, *linked, STYLE}:
        target = SOURCE / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def list_linked(page: Path) -> Iterator[Path]:
    """List the files of the repository to which a page links."""
    for target in LINK.findall(page.read_text()):
        file = (page.parent / unquote(target)).resolve()
        if "://" not in target and file.is_file() and file.is_relative_to(ROOT):
            yield file


class Page(HTMLParser):
    """What a built page has: anchors, links, and what a browser fetches to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what is of interest of a tag."""
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in FETCHING and values.get("rel") not in SAVED and FETCHING[tag] in values:
            self.fetched.append(values[FETCHING[tag]])


@cache
def read(file: Path) -> Page:
    """Read a built page."""
    return Page(file.read_text())


def check(file: Path) -> Iterator[str]:
    """Say what is wrong with a built page."""
    page = read(file)
    for target in (*page.links, *page.fetched):
        if re.match(r"(https?:)?//", target):
            if target in page.fetched:
                yield f"fetches {target}"
        elif not target.startswith(("mailto:", "data:", "javascript:")):
            yield from check_link(file, target)
    if STYLES.search(file.read_text()):
        yield "has a style that is fetched from the network"
    for plain in LOOKS_PLAIN.findall(re.sub(r"<pre.*?</pre>", "", file.read_text(), flags=re.S)):
        yield f"shows a list or a table as text: {' '.join(plain.split())[-70:]!r}"


def check_link(file: Path, target: str) -> Iterator[str]:
    """Say whether a relative link leads nowhere."""
    path, _, anchor = unquote(target).partition("#")
    place = (file.parent / path.partition("?")[0]).resolve() if path else file
    if not place.is_file() or not place.is_relative_to(SITE):
        yield f"links to {target}"
    elif anchor and place.suffix == ".html" and anchor not in read(place).anchors:
        yield f"links to {target}, an anchor that is not there"


def build() -> None:
    """Build the site, with a script of its own where Zensical's is fetched from the network."""
    copy_pages()
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=ROOT, check=True)
    (SITE / "404.html").unlink()  # for servers; its links work at the root of one alone
    shutil.copyfile(WORKER, SITE / WORKER.name)
    for file in SITE.rglob("*.html"):
        up = "../" * (len(file.relative_to(SITE).parts) - 1)
        file.write_text(file.read_text().replace(SHIM, f"{up}{WORKER.name}"))


def main() -> None:
    """Build, check, and say where the site is."""
    build()
    built = sorted(SITE.rglob("*.html"))
    wrong = [f"{file.relative_to(SITE)} {problem}" for file in built for problem in check(file)]
    wrong += [
        f"{file.relative_to(SITE)} fetches something from the network"
        for file in SITE.rglob("*.css")
        if STYLES.search(file.read_text())
    ]
    if wrong:
        sys.exit("\n".join(["", *wrong, f"{len(wrong)} problems"]))
    print(f"{len(built)} pages without a dead link: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
