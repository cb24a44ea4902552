"""A headless Chromium, driven over two pipes by the DevTools protocol; it needs no package."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
PATIENCE = 60.0  # seconds until an answer; a busy machine may be slow to start it
# Chromium reads descriptor 3 and writes 4; higher copies first, so that neither is overwritten
_EXEC = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 20) for end in sys.argv[1:3]]
for number, end in enumerate(ends, start=3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One Chromium with one page; `problems` and `requests` are what the page caused so far."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            pytest.fail("Chromium is missing: install it (apt-get install chromium)", pytrace=False)
        self.folder = Path(tempfile.mkdtemp(prefix="coterie-browser-"))
        (read, self._out), (self._in, write) = os.pipe(), os.pipe()
        command = [sys.executable, "-c", _EXEC, str(read), str(write), program, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self.folder / 'profile'}", "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._buffer, self._count, self._session = b"", 0, ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.events: list[str] = []
        self.downloads = self.folder / "downloads"
        self.downloads.mkdir()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            downloadPath=str(self.downloads),
            eventsEnabled=True,
        )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something, and return its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session and not method.startswith("Browser."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != message["id"]:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            assert time.monotonic() < deadline, "Chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the page asked of the network, and what went wrong in it."""
        name, values = event.get("method", ""), event.get("params", {})
        self.events.append(name)
        if name == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(values["exceptionDetails"]))
        elif name == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.problems.append(values["entry"]["text"])

    def open(
        self, page: Path | str, width: int = 1400, dark: bool = False, media: str = ""
    ) -> None:
        """Open a file or an address in a window of a width, and wait until it is drawn."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.problems.clear()
        self.requests.clear()
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait(lambda: "Page.loadEventFired" in self.events)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """Run a script in the page and return its value."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, is_done: Callable[[], Any]) -> Any:
        """Wait until something holds; events that came meanwhile are noted."""
        deadline = time.monotonic() + PATIENCE
        while not (result := is_done()):
            assert time.monotonic() < deadline, "nothing happened"
            self.call("Runtime.evaluate", expression="0")
            time.sleep(0.01)
        return result

    def download(self, script: str, suffix: str) -> str:
        """Run a script that saves a file, and return what is in the file."""
        for path in self.downloads.iterdir():
            path.unlink()
        self.run(script)

        def find() -> str:
            done = [path for path in self.downloads.iterdir() if path.suffix == suffix]
            return done[0].read_text(encoding="utf-8") if done else ""

        return str(self.wait(find))

    def picture(self) -> bytes:
        """Take a picture of the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """End the browser and remove its files."""
        try:
            self._session = ""
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self.folder, ignore_errors=True)


def figure(title: str) -> str:
    """A script that finds a figure."""
    found = "[...document.querySelectorAll('figure')].find(f => f.querySelector('h3').textContent"
    return f"{found} === {json.dumps(title)})"


def assert_quiet(browser: Browser, page: Path) -> None:
    """Nothing went wrong, and nothing was asked for but the page itself."""
    assert browser.problems == []
    outside = [url for url in browser.requests if not url.startswith("blob:")]
    assert outside == [page.as_uri()]


def assert_drawn(browser: Browser, sections: Sequence[str]) -> None:
    """The page has these sections, its contents lead to them, and every figure is drawn."""
    titles = browser.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
    assert titles == list(sections)
    drawn = browser.run(
        "[...document.querySelectorAll('figure')].map(f => [f.querySelector('h3').textContent,"
        " f.querySelectorAll('.plot > svg > g *').length, f.querySelectorAll('.save').length])"
    )
    assert drawn and all(marks > 8 and saves == 2 for _, marks, saves in drawn)
    links = browser.run(
        "[...document.querySelectorAll('.contents a')]"
        ".filter(a => document.querySelector(a.hash)).length"
    )
    assert links == len(titles)


def assert_narrow(browser: Browser, page: Path) -> None:
    """Nothing is wider than a phone; wide tables are moved within themselves."""
    browser.open(page, 390)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    beyond = browser.run(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.table'))"
        ".filter(e => e.getBoundingClientRect().right > 390.5)"
        ".map(e => `${e.tagName} ${e.textContent.slice(0, 40)}`)"
    )
    assert beyond == [] and browser.run("document.documentElement.scrollWidth") == 390
    assert browser.run("document.querySelector('.plot > svg').getBoundingClientRect().width") > 250
