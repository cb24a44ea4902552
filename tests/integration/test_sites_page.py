"""`docs/sites.md`, executed as written: a server and two hospitals as processes, over TLS."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import coterie
import pages
from pages import ROOT, SHELL
from site_processes import find_port

LIMIT = 240.0  # seconds
HOST = "coordinator.example"


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Two folders with images of two classes."""
    random = np.random.default_rng(0)
    for site, count in (("north", 24), ("south", 16)):
        for number in range(count):
            kind = ("healthy", "ill")[number % 2]
            place = tmp_path / f"scans-{site}" / kind
            place.mkdir(parents=True, exist_ok=True)
            low = 140 * (number % 2)
            pixels = random.integers(low, low + 100, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(place / f"{number:02d}.png")
    return tmp_path


class Machines:
    """Runs commands in a folder; those that wait for others stay in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, find_port()
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.started: list[tuple[str, subprocess.Popen[str]]] = []

    def run(self, line: str) -> None:
        """Run a line of the page, with a server on this machine."""
        words = shlex.split(line.replace(f"{HOST}:9092", f"127.0.0.1:{self.port}"), comments=True)
        words = ["127.0.0.1" if word == HOST else word for word in words]
        if words[:3] == ["coterie", "deploy", "server"]:
            words += ["--port", str(self.port), "--wait", "120"]
        if words[0] == "coterie":
            words = [sys.executable, "-m", *words]
        waits = words[2:4] in (["coterie", "deploy"],) and words[4] in ("server", "client")
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append((line, process))
        if not waits:
            self.wait()

    def wait(self) -> str:
        """Wait for all commands so far; return what they printed."""
        deadline, printed = time.monotonic() + LIMIT, []
        try:
            for line, process in self.started:
                text, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                printed.append(text)
                assert process.returncode == 0, f"{line}\n{text}"
        finally:
            for _, process in self.started:
                process.kill()
        self.started.clear()
        return "\n".join(printed)


def test_the_page_of_sites_works_as_written(hospitals: Path) -> None:
    machines, printed = Machines(hospitals), ""
    for block in pages.blocks(ROOT / "docs" / "sites.md"):
        if "tested by" not in block.marks:
            continue
        if block.language == "toml":
            (hospitals / "scans.toml").write_text(block.text)
        for line in block.text.splitlines() if block.language in SHELL else ():
            if line.startswith("coterie export"):
                printed = machines.wait()
            machines.run(line)
        if "--resume" in block.text:
            printed += machines.wait()
    assert "leaves this client" in printed and "leaves each client: sizes" in printed
    assert (hospitals / "model.onnx").stat().st_size > 0
    check_bits(hospitals)


def check_bits(folder: Path) -> None:
    """The same hospitals in one process give the same weights."""
    shutil.copytree(folder / "scans-north", folder / "sites" / "north")
    shutil.copytree(folder / "scans-south", folder / "sites" / "south")
    changes = {"data.name": "sites", "data.root": str(folder / "sites"), "executor.kind": "serial"}
    coterie.run(folder / "scans.toml", out=folder / "simulated", **changes)
    deployed, simulated = (
        (folder / run / "model.safetensors").read_bytes() for run in ("scans-run", "simulated")
    )
    assert deployed == simulated
