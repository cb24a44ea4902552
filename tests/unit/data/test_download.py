"""Downloads from a server of this machine: good, wrong, cut, refused, there already."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coterie.cli.download import download as command
from coterie.core.errors import ConfigError, DataError
from coterie.data import download
from coterie.data.download import REMOTES, Remote, fetch

BODY = bytes(range(256)) * 5000
HASH = hashlib.sha256(BODY).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Gives the body, cut or endless or not at all by the path asked for."""

    def do_GET(self) -> None:
        if "lost" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        times = 50 if "endless" in self.path else 1
        sent = BODY[:-1000] if "cut" in self.path else BODY * times
        with contextlib.suppress(OSError):  # the other side may have heard enough
            self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def point(monkeypatch: pytest.MonkeyPatch, address: str, sha256: str = HASH) -> None:
    remote = Remote(address, len(BODY), sha256, "below")
    monkeypatch.setitem(download.REMOTES, "mnist", (remote,))


def test_a_good_file(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point(monkeypatch, f"{address}/file.gz")
    said: list[str] = []
    fetch("mnist", tmp_path / "new", said.append)
    target = tmp_path / "new" / "below" / "file.gz"
    assert target.read_bytes() == BODY
    assert [entry.name for entry in target.parent.iterdir()] == ["file.gz"]
    assert said[0] == f"{address}/file.gz (1.3 MB) -> {target}"
    point(monkeypatch, "http://127.0.0.1:1/file.gz")
    fetch("mnist", tmp_path / "new", said.append)
    assert said[2] == f"{target} is already there, with the right SHA-256"
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"file\.gz is there with SHA-256 .*not {HASH}; delete"):
        fetch("mnist", tmp_path / "new", said.append)
    assert target.read_bytes() == b"mine"


@pytest.mark.parametrize("path", ["other.gz", "cut.gz", "endless.gz"])
def test_a_wrong_file_is_removed(
    path: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(monkeypatch, f"{address}/{path}", "0" * 64)
    with pytest.raises(DataError, match=rf"SHA-256 [0-9a-f]{{64}}, not {'0' * 64}") as caught:
        fetch("mnist", tmp_path, str)
    if path == "cut.gz":
        assert f"{len(BODY) - 1000} of {len(BODY)} bytes" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "below").iterdir())


def test_no_way_there(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}/file.gz"
        for where, reason in ((closed, "refused"), (f"{address}/lost.gz", "Not Found")):
            point(monkeypatch, where)
            with pytest.raises(
                DataError, match=rf"cannot be fetched .*{reason}.*by hand"
            ) as caught:
                fetch("mnist", tmp_path, str)
            assert "\n" not in str(caught.value)
    assert not list((tmp_path / "below").iterdir())


def test_a_root_that_cannot_be_written(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(monkeypatch, f"{address}/file.gz")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written .*--root"):
        fetch("mnist", tmp_path / "file", str)


def test_what_is_not_fetched(tmp_path: Path) -> None:
    said: list[str] = []
    fetch("digits", tmp_path, said.append)
    assert "nothing to download" in said[0]
    with pytest.raises(ConfigError, match="'folder' is made of your own files"):
        fetch("folder", tmp_path, str)
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        fetch("cifar1O", tmp_path, str)
    assert not list(tmp_path.iterdir())


def test_the_pins_are_whole() -> None:
    remotes = [remote for group in REMOTES.values() for remote in group]
    assert len({remote.sha256 for remote in remotes}) == len(remotes) == 10
    for remote in remotes:
        assert len(bytes.fromhex(remote.sha256)) == 32
        assert remote.size > 0
        assert remote.name.endswith(".gz")


def test_the_command(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point(monkeypatch, f"{address}/file.gz")
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["mnist", "--root", str(tmp_path)])
    assert result.exit_code == 0
    assert f"data.root={tmp_path}" in result.output
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert "already there" in CliRunner().invoke(app, ["mnist"]).output
