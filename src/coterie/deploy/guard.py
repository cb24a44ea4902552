"""What a server lets in from the network, and when it may be reached without encryption.

SuperLink serves three interfaces on one port: the fleet's for sites, which checks their keys, and
two for whoever runs programs on the server, which ask for nothing: a process that could reach them
would have its own Python run there. Coterie calls those two in its own process and needs no port
for them, so the guard answers 403 on every path that is not the fleet's, whoever asks. An address
would be no protection: other users of the machine, and a proxy in front of it, come from 127.0.0.1.
"""

import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from coterie.core.errors import ConfigError

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)


class Guard:
    """An ASGI application in front of another: admits POST requests to some paths, up to a size."""

    def __init__(
        self,
        app: App,
        paths: Collection[str],
        max_bytes: int,
        served: Callable[[str], None] = lambda path: None,
    ) -> None:
        """Guard `app`; `served` is called with the path of every request that it has granted."""
        self._app, self._paths, self._max_bytes = app, frozenset(paths), max_bytes
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is admitted; answer 403, or 413 for a body that is too large."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http" or not self._admits(scope):
            _report(scope, 403)
            await _answer(scope, send, 403, "not served to the network")
        elif _declared_length(scope) > self._max_bytes:
            await _answer(scope, send, 413, f"more than {self._max_bytes} bytes in one request")
        else:
            await self._app(scope, self._counted(receive), self._reporting(scope, send))

    def _admits(self, scope: Scope) -> bool:
        # `raw_path` too, so that an encoded path cannot mean one thing here and another inside
        raw = scope.get("raw_path") or scope["path"].encode()
        return (
            scope["method"] == "POST"
            and not scope.get("root_path")
            and scope["path"] in self._paths
            and raw.split(b"?")[0] == scope["path"].encode()
        )

    def _counted(self, receive: Receive) -> Receive:
        """Break off a body that is longer than it declared."""
        size = 0

        async def counted() -> Event:
            nonlocal size
            event = await receive()
            size += len(event.get("body", b""))
            if size > self._max_bytes:
                return {"type": "http.disconnect"}
            return event

        return counted

    def _reporting(self, scope: Scope, send: Send) -> Send:
        """Report answers that refuse a request, such as an unknown key, and those that grant it."""

        async def reporting(event: Event) -> None:
            if event["type"] == "http.response.start":
                if event["status"] >= 400:
                    _report(scope, event["status"])
                else:
                    self._served(scope["path"])
            await send(event)

        return reporting


def _report(scope: Scope, status: int) -> None:
    client = (scope.get("client") or ("an unknown address",))[0]
    method, path = scope.get("method", scope["type"]), scope.get("path", "")
    _log.warning("refused %s %r from %s with %d", method, path, client, status)


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and re.fullmatch(rb"[0-9]{1,18}", value):
            return int(value)
    return 0


async def _answer(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = text.encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_loopback(host: str) -> bool:
    """Tell whether a host can be reached from its own machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(
    host: str, *, secured: bool, insecure: bool, insecure_network: bool = False
) -> None:
    """Refuse to speak without TLS and keys, unless it was asked for and stays on this machine.

    `secured` says that certificates and keys were given, `insecure` that the user asked to do
    without (`--insecure`), `insecure_network` that it may even cross a network.
    """
    if secured and insecure:
        raise ConfigError("'--insecure' contradicts the certificates and keys that were given")
    if secured:
        return
    if not insecure:
        raise ConfigError(
            f"no certificates and keys were given for {host}: 'coterie deploy certs' and "
            "'coterie deploy keys' make them; on one machine '--insecure' does without"
        )
    if not is_loopback(host) and not insecure_network:
        raise ConfigError(
            f"'--insecure' with {host} would send models in clear over a network, to anyone who "
            "asks: use certificates and keys, or 127.0.0.1, or add '--insecure-network'"
        )
