"""Serve SuperLink's application from a thread, so that it ends with the process of the server."""

import asyncio
import logging
import socket
import threading
import time

import uvicorn

from coterie.core.errors import ConfigError, RunFailed
from coterie.deploy.certificates import Certificates
from coterie.deploy.guard import App

_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_MAX_CONNECTIONS = 512  # open requests; further ones are answered 503, and sites ask again


class Listener:
    """An HTTP server on one address, encrypted if there are certificates."""

    def __init__(self, app: App, host: str, port: int, tls: Certificates | None) -> None:
        self._socket = _bind(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            ssl_certfile=str(tls.certificate) if tls else None,
            ssl_keyfile=str(tls.key) if tls else None,
            loop="asyncio",  # uvloop leaves encrypted connections open when it is closed
            access_log=False,
            log_config=None,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            proxy_headers=False,  # nobody may tell us another address than the one they come from
            server_header=False,
            ws="none",
        )
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the guard reports refusals
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            self._socket.close()
            raise ConfigError(f"the server's certificate or key cannot be used: {error}") from error
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, name="superlink", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise RunFailed(f"SuperLink did not start on {host}:{self.port}")
            time.sleep(0.01)

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Stop serving; safe to call twice."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()


class _Server(uvicorn.Server):
    """Drops connections that are still open when it ends: a site may not answer a good-bye."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, then abort what is left of them."""
        await super().shutdown(sockets)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        await asyncio.sleep(0.05)  # for the event loop to release them


def _bind(host: str, port: int) -> socket.socket:
    """Listen on an address, or say in one line why that is impossible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listening
