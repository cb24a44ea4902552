"""Every block of Python and shell on every page runs, or says why it does not."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import page_server
import pages
from coterie.experiment.config import resolve
from pages import ROOT, SHELL, Block

LIMIT = 240  # seconds; a page takes a few
EXECUTED = [
    page
    for page in pages.PAGES
    if any(block.executed and block.language in ("python", *SHELL) for block in pages.blocks(page))
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LANGUAGES = ("python", "toml", *SHELL, "text", "json", "c", "")
COMMANDS = ("coterie ", "make ", "pip ", "python ", "PYTHONPATH=", ".venv/")

Ask = Callable[[dict[str, Any]], str]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data in the form of those that a page speaks of.

    Pictures and two sites as arrays; three sites with images in `scans`, without labels, and in
    `photos`, of two classes.
    """
    folder = tmp_path_factory.mktemp("stand-ins")
    labels = np.arange(3000) % 10
    shape = (len(labels), 3, 32, 32)
    images = {"x_train": np.zeros(shape, np.uint8), "y_train": labels}
    np.savez(folder / "images.npz", **images, x_test=images["x_train"][:20], y_test=labels[:20])
    (folder / "sites").mkdir()
    for site in ("clinic-a", "clinic-b"):
        np.savez(folder / "sites" / f"{site}.npz", x=images["x_train"][:40], y=labels[:40])
    random = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        for number, pixels in enumerate(random.integers(0, 256, (12, 16, 16, 3), np.uint8)):
            for place in (f"scans/{site}", f"photos/{site}/{('cat', 'dog')[number % 2]}"):
                (folder / place).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / place / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A process that answers requests, and the folder of its socket and of the stub `coterie`."""
    folder = tmp_path_factory.mktemp("server")
    address = str(folder / "socket")
    page_server.write_stub(folder, address)
    command = [sys.executable, page_server.__file__, address]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=one_thread) as process:
        while not (folder / "socket").exists() and process.poll() is None:
            time.sleep(0.01)
        yield folder
        process.terminate()


@pytest.fixture
def ask(server: Path, stand_ins: Path, tmp_path: Path) -> Ask:
    """Run something in a fresh folder with the files that pages save: what it printed."""
    for file, text in pages.saved_files().items():
        (tmp_path / file).write_text(text)
    for images in ("scans", "photos"):
        shutil.copytree(stand_ins / images, tmp_path / images)

    def call(request: dict[str, Any]) -> str:
        binaries = f"{server}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        more = {"PATH": binaries, "PAGE_STAND_INS": str(stand_ins), "TERM": "dumb"}
        output = tmp_path.parent / f"{tmp_path.name}.txt"
        with output.open("w+") as stream:
            handles = (stream.fileno(),) * 3
            asked = {"folder": str(tmp_path), "environment": {**os.environ, **more}, **request}
            code = page_server.ask(str(server / "socket"), asked, handles)
        assert code == 0, output.read_text()
        return output.read_text()

    return call


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("page", EXECUTED, ids=pages.name)
def test_the_blocks_of_a_page_run_in_order(page: Path, ask: Ask) -> None:
    blocks = [
        {"language": b.language, "text": b.text, "line": b.line, "with": _words(b)}
        for b in pages.blocks(page)
        if b.executed and b.language in ("python", *SHELL)
    ]
    ask({"page": pages.name(page), "blocks": blocks})


def _words(block: Block) -> list[str]:
    return block.marks.get("run with", "").split()


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("example", EXAMPLES, ids=pages.name)
def test_an_example_runs_and_leaves_nothing(example: Path, ask: Ask, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    assert ask({"script": str(example)}).count("accuracy") >= 2
    assert set(tmp_path.iterdir()) == before


def test_a_configuration_on_a_page_can_be_resolved() -> None:
    for block in pages.all_blocks("toml"):
        if block.executed:
            resolve(tomllib.loads(block.text))


def test_every_mark_is_known_and_has_its_reason() -> None:
    wrong = []
    for block in pages.all_blocks():
        for mark, said in block.marks.items():
            if mark not in pages.MARKS or (mark == "not run" and len(said.split()) < 3):
                wrong.append(f"{block.place}: <!-- {mark}: {said} -->")
            if mark == "tested by" and not _test_exists(said):
                wrong.append(f"{block.place}: there is no test called {said}")
    assert not wrong


def _test_exists(test: str) -> bool:
    files = (ROOT / "tests").rglob("test_*.py")
    return any(re.search(rf"^def {re.escape(test)}\(", file.read_text(), re.M) for file in files)


def test_every_fence_has_a_language_that_is_known() -> None:
    """One that is not, such as `shell`, would never be run."""
    assert not [b.place for b in pages.all_blocks() if b.language not in LANGUAGES]


def test_a_block_of_commands_says_that_it_is_one() -> None:
    """A fence without a language, or of text, is output or a picture: nobody would run it."""
    wrong = [
        block.place
        for block in pages.all_blocks("", "text")
        if any(line.startswith(COMMANDS) for line in block.text.splitlines())
    ]
    assert not wrong
