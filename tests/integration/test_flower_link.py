"""Messages between a server and sites over Flower, with certificates, keys and a database."""

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from coterie.core.errors import CheckpointError, ConfigError, RunFailed
from coterie.deploy.flower.client import FlowerClientLink
from coterie.deploy.flower.server import FlowerServerLink
from coterie.deploy.link import Message
from flower_sites import Echo, Town, collect, take, wait_for


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return Town(tmp_path_factory.mktemp("town"), ["west", "east", "absent", "restless"])


@pytest.fixture(scope="module")
def server(town: Town) -> Iterator[FlowerServerLink]:
    link = town.serve()
    yield link
    link.close()


@pytest.fixture(scope="module")
def sites(town: Town, server: FlowerServerLink) -> Iterator[None]:
    echoes = [Echo(town.connect(server.address, name)) for name in ("west", "east")]
    yield
    for echo in echoes:
        echo.close()


def count(server: FlowerServerLink, table: str) -> int:
    return int(server._state.query(f"SELECT COUNT(*) AS n FROM {table}")[0]["n"])


@pytest.mark.usefixtures("sites")
def test_answers_belong_to_their_requests_and_nothing_is_left_behind(
    server: FlowerServerLink,
) -> None:
    assert dict(server.peers()) == {
        **{"absent": False, "east": True, "restless": False},
        "west": True,
    }
    assert list(server.peers()) == sorted(server.peers())
    requests = [
        Message("west", "task", {"round": 3, "nested": {"x": [1.5, None]}}, b"abc"),
        Message("east", "task", {"round": 4}, b""),
    ]
    answers = collect(server, server.send(requests))
    assert [(a.peer, a.kind, a.head, a.body, a.error) for a in answers] == [
        ("west", "echo", {"round": 3, "nested": {"x": [1.5, None]}}, b"cba", ""),
        ("east", "echo", {"round": 4}, b"", ""),
    ]
    assert count(server, "objects") == count(server, "message_ins") == 0


@pytest.mark.usefixtures("sites")
def test_a_body_that_is_shared_is_stored_once_and_equal_chunks_survive(
    server: FlowerServerLink,
) -> None:
    body = bytes(11 * 1024**2) + b"end"  # two equal chunks and a third
    ids = server.send([Message(name, "task", {}, body) for name in ("west", "east")])
    stored = server._state.query("SELECT COUNT(*) AS n FROM objects WHERE LENGTH(content) > 1e6")
    assert stored[0]["n"] <= 2  # less if an answer was quick
    for answer in collect(server, ids):
        assert answer.body == body[::-1]


@pytest.mark.usefixtures("sites")
def test_an_answer_wakes_a_server_that_waits(server: FlowerServerLink) -> None:
    ids, answers = server.send([Message("west", "task", {}, b"abc")]), list[Message]()
    while not answers:
        server.wait(3600.0)  # longer than a test may take
        answers = server.receive(ids)
    assert answers[0].body == b"cba"


def test_a_client_that_is_not_connected_and_an_unknown_request_are_errors_at_once(
    server: FlowerServerLink,
) -> None:
    ids = server.send([Message("absent", "task", {"a": 1}, b"x"), Message("nobody", "task")])
    failed = server.receive([*ids, "never-sent"])
    assert [message.error for message in failed] == [
        *["the client is not connected"] * 2,
        "there is no such request",
    ]
    assert failed[0].head == {"a": 1} and failed[0].body == b""


def test_a_client_that_is_killed_is_back_within_seconds_and_its_request_fails(
    town: Town, server: FlowerServerLink
) -> None:
    first = town.connect(server.address, "restless")
    (id,) = server.send([Message("restless", "task")])
    take(first)
    first._closing.set()  # killed: no sign of life, no good-bye
    first._client.close()
    began = time.monotonic()
    second = town.connect(server.address, "restless")
    assert time.monotonic() - began < 10.0  # Flower alone would refuse it for 30 s
    assert collect(server, [id])[0].error == "the client was restarted before it answered"
    (id,) = server.send([Message("restless", "task", {}, b"again")])
    echo = Echo(second)
    assert collect(server, [id])[0].body == b"niaga"
    echo.close()
    assert not server.peers()["restless"]


def test_a_client_that_signs_off_fails_its_requests(town: Town, server: FlowerServerLink) -> None:
    link = town.connect(server.address, "restless")
    (id,) = server.send([Message("restless", "task")])
    link.close()
    assert collect(server, [id])[0].error == "the client is no longer connected"


def test_an_answer_that_pretends_to_be_small_is_refused(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = town.connect(server.address, "restless")
    (id,) = server.send([Message("restless", "task")])
    request = take(link)
    monkeypatch.setattr(server, "_max_bytes", 20_000_000)
    link.reply(request, "bomb", {}, bytes(50 * 1024**2))  # ten equal chunks: 5 MiB travel
    assert collect(server, [id])[0].error == "the answer cannot be read: more than 20,000,000 bytes"
    link.close()


def test_a_request_has_a_deadline(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = town.connect(server.address, "restless")
    monkeypatch.setattr(server, "_seconds", 0.1)
    (id,) = server.send([Message("restless", "task")])
    assert collect(server, [id])[0].error == "the client did not answer within 0 s"
    link.close()


def test_a_restarted_server_finds_its_clients_and_refuses_answers_to_its_earlier_life(
    tmp_path: Path,
) -> None:
    town = Town(tmp_path, ["north"])
    first = town.serve()
    port = int(first.address.rpartition(":")[2])
    client = town.connect(first.address, "north")
    first.send([Message("north", "task", {}, b"old")])
    request = take(client)
    first._listener.close()  # killed: its run is not ended
    first._closing.set()
    assert client.receive() is None  # away, which is no error yet
    answer = threading.Thread(target=client.reply, args=(request, "echo", {}, b"late"))
    answer.start()
    second = town.serve(port)
    answer.join(30.0)
    assert not answer.is_alive()
    assert second.peers() == {"north": True}
    ids = second.send([Message("north", "task", {}, b"new")])
    echo = Echo(client)
    assert collect(second, ids)[0].body == b"wen"
    echo.close()
    second.close()


def test_without_keys_clients_are_asked_for_their_names(tmp_path: Path) -> None:
    server = FlowerServerLink("127.0.0.1", 0, database=tmp_path / "link.db")
    links = [
        FlowerClientLink(server.address, state=tmp_path / name, name=name) for name in ("b", "a")
    ]
    echoes = [Echo(link) for link in links]
    wait_for(lambda: server.peers() == {"a": True, "b": True})
    assert list(server.peers()) == ["a", "b"]
    assert collect(server, server.send([Message("b", "task", {}, b"xy")]))[0].body == b"yx"
    for echo in echoes:
        echo.close()
    server.close()


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"127\.0\.0\.1:9 cannot be reached.*gave up after 1 s"):
        FlowerClientLink("127.0.0.1:9", state=tmp_path, name="a", patience=1.0)


def test_half_a_protection_and_an_open_network_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        FlowerServerLink("127.0.0.1", 0, database=tmp_path / "x.db", keys=tmp_path)
    with pytest.raises(ConfigError, match="'--insecure' with"):
        FlowerServerLink("0.0.0.0", 0, database=tmp_path / "x.db")
    with pytest.raises(ConfigError, match="'--insecure' with"):
        FlowerClientLink("server.example:1", state=tmp_path)


def test_a_signal_to_stop_waits_until_the_database_was_written(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = town.connect(server.address, "restless")
    push, pushed = server._push, []

    def interrupted(addressed: Any) -> list[str]:
        signal.raise_signal(signal.SIGINT)
        pushed.extend(push(addressed))
        return pushed

    monkeypatch.setattr(server, "_push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.send([Message("restless", "task")])
    monkeypatch.undo()
    assert take(link).id == pushed[0]
    link.close()
    assert collect(server, pushed)[0].error == "the client is no longer connected"


def test_a_full_database_is_one_line_with_its_path(
    server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(addressed: Any) -> list[str]:
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(server, "_push", fail)
    with pytest.raises(CheckpointError, match=r"cannot use .*: database or disk is full; what was"):
        server.send([Message("west", "task")])


def test_a_database_that_cannot_be_made_is_one_line_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*file"):
        FlowerServerLink("127.0.0.1", 0, database=tmp_path / "file" / "link.db")


def test_a_database_that_takes_no_more_does_not_disturb_the_end(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: int) -> None:
        raise OSError("database is locked")

    link = town.serve()
    monkeypatch.setattr(link._state, "stop_run", fail)
    link.close()
    link.close()
