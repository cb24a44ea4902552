"""What is let in from the network, and where encryption may be left out."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coterie.core.errors import ConfigError
from coterie.deploy.guard import Event, Guard, Receive, Scope, Send, check_exposure, is_loopback


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 with the length of the body, 499 if the body breaks off."""
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            await send({"type": "http.response.start", "status": 499, "headers": []})
            return
        size, more = size + len(event["body"]), event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(
    path: str,
    method: str = "POST",
    body: tuple[bytes, ...] = (b"",),
    served: Callable[[str], None] = print,
    **more: Any,
) -> int:
    """Send a request to a guard that admits /fleet up to 10 bytes; return the status."""
    events: list[Event] = [
        {"type": "http.request", "body": part, "more_body": position < len(body) - 1}
        for position, part in enumerate(body)
    ]
    sent: list[Event] = []

    async def receive() -> Event:
        return events.pop(0)

    async def send(event: Event) -> None:
        sent.append(event)

    scope = {"type": "http", "method": method, "path": path, "headers": [], **more}
    asyncio.run(Guard(app, ["/fleet"], 10, served)(scope, receive, send))
    return int(sent[0]["status"])


def test_only_the_paths_of_the_fleet_are_served() -> None:
    assert ask("/fleet") == 200
    for path in ("/", "/fleet/", "/fleet2", "/v1/control/start-run", "/docs", "//fleet", ""):
        assert ask(path) == 403, path


def test_another_method_or_protocol_is_refused() -> None:
    assert ask("/fleet", method="GET") == 403
    assert ask("/fleet", root_path="/other") == 403


def test_a_path_that_is_written_in_another_way_is_refused() -> None:
    assert ask("/fleet", raw_path=b"/fleet?x=1") == 200
    assert ask("/fleet", raw_path=b"/%66leet") == 403


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() -> None:
    assert ask("/fleet", body=(b"12345", b"67890")) == 200
    assert ask("/fleet", headers=[(b"content-length", b"11")]) == 413
    assert ask("/fleet", body=(b"12345", b"67890", b"1")) == 499


def test_only_requests_that_are_granted_are_told() -> None:
    told: list[str] = []
    ask("/fleet", served=told.append)
    assert told == ["/fleet"]
    for path, body in (("/other", b""), ("/fleet", b"more than ten")):
        ask(path, body=(body,), served=told.append)
    assert told == ["/fleet"]


def test_a_web_socket_is_closed() -> None:
    sent: list[Event] = []

    async def send(event: Event) -> None:
        sent.append(event)

    async def receive() -> Event:
        return {"type": "websocket.connect"}

    asyncio.run(Guard(app, ["/fleet"], 10)({"type": "websocket", "path": "/fleet"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_addresses_of_this_machine_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "hospital.example", ""])
def test_all_other_addresses_count_as_a_network(host: str) -> None:
    assert not is_loopback(host)


def test_encryption_may_be_left_out_on_one_machine_only() -> None:
    check_exposure("0.0.0.0", secured=True, insecure=False)
    check_exposure("127.0.0.1", secured=False, insecure=True)
    check_exposure("0.0.0.0", secured=False, insecure=True, insecure_network=True)
    with pytest.raises(ConfigError, match=r"'--insecure' with 0.0.0.0 would send models in clear"):
        check_exposure("0.0.0.0", secured=False, insecure=True)
    with pytest.raises(ConfigError, match="no certificates and keys were given"):
        check_exposure("127.0.0.1", secured=False, insecure=False)
    with pytest.raises(ConfigError, match="contradicts"):
        check_exposure("127.0.0.1", secured=True, insecure=True)
