"""The page that `coterie run --watch` serves, asked as a browser would, and as one would not."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_run import make_run

from coterie.core.errors import ConfigError
from coterie.engine.record import ClientEvent, MetricsFile, StartEvent
from coterie.report import live as module
from coterie.report.live import LivePage


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_FAREWELL", 0.5)
    return make_run(tmp_path / "run")


@pytest.fixture
def live(folder: Path) -> Iterator[LivePage]:
    with LivePage(folder) as served:
        yield served


def ask(
    live: LivePage, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Send one request; return the status, the headers and the body of the answer."""
    link = http.client.HTTPConnection(*live.url.removeprefix("http://").rstrip("/").split(":"))
    link.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        link.putheader(name, value)
    link.endheaders()
    answer = link.getresponse()
    body = answer.read().decode()
    link.close()
    return answer.status, dict(answer.getheaders()), body


def advance(live: LivePage, folder: Path, rounds: int) -> None:
    """Let the server hear of the first rounds of a made-up run."""
    live(StartEvent(folder, 4, 0, 3))
    for event in MetricsFile(folder / "metrics.jsonl").read()[:rounds]:
        live(event)


def test_the_page_waits_for_the_first_round_and_then_shows_the_run(
    live: LivePage, folder: Path
) -> None:
    assert "is being prepared" in ask(live)[2]
    advance(live, folder, 2)
    status, headers, page = ask(live)
    assert (status, headers["ETag"]) == (200, '"2"')
    assert "<h1>FedAvg on digits</h1>" in page and "connect-src 'self'" in page
    assert "accuracy so far" in page and "at the end" not in page
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert ask(live, method="HEAD")[::2] == (200, "")


def test_the_state_says_how_far_the_run_is(live: LivePage, folder: Path) -> None:
    live(StartEvent(folder, 4, 0, 3))
    live(ClientEvent(0, 3, 2, 4))
    state = json.loads(ask(live, "/state")[2])
    text = "Round 1 of 3: 2 of 4 clients are done (training)."
    assert state == {"page": "0", "text": text, "over": False}
    advance(live, folder, 3)
    assert json.loads(ask(live, "/state")[2])["page"] == "3"
    live.finish()
    state = json.loads(ask(live, "/state")[2])
    assert state["over"] and state["page"] == "3 over" and "report.html" in state["text"]
    assert "accuracy at the end" in ask(live)[2]


@pytest.mark.parametrize(
    "path", ["/config.toml", "/../config.toml", "/%2e%2e/config.toml", "/state/", "/favicon.ico"]
)
def test_nothing_else_is_served(path: str, live: LivePage) -> None:
    assert ask(live, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "[::1]", "a:b"])
def test_another_host_name_is_refused(host: str, live: LivePage) -> None:
    status, _, body = ask(live, Host=host)
    assert status == 403 and "<html" not in body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8123"])
def test_names_of_this_machine_are_answered(host: str, live: LivePage) -> None:
    assert ask(live, Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"])
def test_other_methods_are_refused(method: str, live: LivePage) -> None:
    status, headers, _ = ask(live, method=method)
    assert status == 405 and headers["Allow"] == "GET, HEAD"


def test_a_page_is_drawn_only_when_it_is_asked_for_and_the_run_has_grown(
    live: LivePage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(module, "make_page", lambda *_, **__: drawn.append(1) or "page")
    advance(live, folder, 3)
    assert not drawn
    assert ask(live)[2] == ask(live)[2] == "page"
    assert len(drawn) == 1


def test_drawing_takes_a_small_share_of_the_time(
    live: LivePage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    def draw(run: Path, live: bool, finished: bool) -> str:
        clock[0] += 1.0
        return f"drawn at {clock[0]:.0f}"

    monkeypatch.setattr(module, "make_page", draw)
    advance(live, folder, 1)
    assert live.read_page() == (b"drawn at 101", "1")
    advance(live, folder, 2)
    clock[0] += 19.0
    assert live.read_page().version == live.read_state()["page"] == "1"
    clock[0] += 2.0
    assert live.read_state()["page"] == "2"
    assert live.read_page() == (b"drawn at 123", "2")


def test_a_page_that_cannot_be_drawn_is_one_note_and_the_one_before_stays(folder: Path) -> None:
    notes: list[str] = []
    with LivePage(folder, note=notes.append) as live:
        (folder / "partition.json").write_text("broken")
        advance(live, folder, 1)
        assert "is being prepared" in ask(live)[2]
        advance(live, folder, 3)
        live.finish()
    (note,) = notes
    assert "the page to watch could not be drawn" in note and "partition.json" in note


def test_a_port_that_is_taken_is_one_line(live: LivePage, folder: Path) -> None:
    port = int(live.url.rstrip("/").rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"--watch-port {port} cannot be used: .*in use"):
        LivePage(folder, port)


def test_a_browser_that_hangs_holds_nothing_up(folder: Path) -> None:
    with LivePage(folder) as live:
        address = ("127.0.0.1", int(live.url.rstrip("/").rpartition(":")[2]))
        with socket.create_connection(address) as hanging:
            hanging.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            advance(live, folder, 3)
            assert ask(live)[0] == 200
            begin = time.monotonic()
            live.__exit__()
            assert time.monotonic() - begin < 5.0  # far less than a browser's patience
    assert all(thread.daemon for thread in threading.enumerate() if "serve" in thread.name)


def test_the_end_waits_for_a_browser_that_follows_the_run_and_for_no_other(
    live: LivePage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FAREWELL", 60.0)
    advance(live, folder, 3)
    begin = time.monotonic()
    live.finish()  # nobody has asked
    ask(live, "/state")
    follower = threading.Timer(0.1, ask, (live,))
    follower.start()
    live.finish()  # until it has got the last page
    assert time.monotonic() - begin < 30.0
    follower.join()
