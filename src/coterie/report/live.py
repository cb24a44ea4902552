"""`coterie run --watch`: serves the page of a growing run on this machine's loopback interface.

Nothing is drawn until a browser asks, and then in a thread of the server. A recorder only notes how
far the run is, so that a slow or hanging browser never holds a round up.
"""

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import ConfigError
from coterie.core.formatting import one_line
from coterie.engine.record import ClientEvent, Event, RoundEvent, StartEvent
from coterie.report.document import LIVE_POLICY, format_body, format_note, make_document
from coterie.report.page import make_page

ADDRESS = "127.0.0.1"
_NAMES = (ADDRESS, "localhost")  # of this machine in a `Host` header
_SHARE = 20  # a drawing may take one part in so many of the time
_PATIENCE = 10.0  # seconds for a browser to send its request or to take the answer
_ATTENTIVE = 5.0  # seconds since the last question, within which a browser is still there
_FAREWELL = 3.0  # seconds at the end for such a browser to get the last page
_HEADERS = {
    "Allow": "GET, HEAD",
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{LIVE_POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Drawn(NamedTuple):
    """A page, and the version of the run that it shows."""

    page: bytes
    version: str


class LivePage:
    """A recorder with a server: port 0 takes any free port, another one must be free."""

    def __init__(
        self, folder: Path, port: int = 0, note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._folder, self._note, self._lock = folder, note, threading.Lock()
        self._text, self._rounds, self._total, self._over = (
            "The run is being prepared.",
            0,
            0,
            False,
        )
        self._drawn = Drawn(_make_waiting_page(), "0")
        self._ready = 0.0  # when the next page may be drawn, on the monotonic clock
        self._asked = float("-inf")
        self._problem, self._told = "", False
        self._taken = threading.Event()  # a browser has got the last page
        try:
            self._server = _PageServer((ADDRESS, port), _PageHandler)
        except (OSError, OverflowError) as error:  # in use, forbidden, or no port at all
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise ConfigError(
                f"--watch-port {port} cannot be used: {reason}; choose another, or leave it out to "
                "take a free one"
            ) from error
        self._server.live = self

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{ADDRESS}:{self._server.server_port}/"

    def __enter__(self) -> "LivePage":
        serve = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        serve.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __call__(self, event: Event) -> None:
        """Keep how far the run is."""
        self._tell_problem()
        if isinstance(event, StartEvent):
            self._rounds, self._total = event.first, event.total
            self._text = f"Round {event.first + 1} of {event.total} has begun."
        elif isinstance(event, ClientEvent):
            done = f"{event.done} of {event.cohort} clients are done"
            self._text = f"Round {event.round + 1} of {event.total}: {done} ({event.activity})."
        elif isinstance(event, RoundEvent):
            self._rounds = event.round + 1
            self._text = f"Round {self._rounds} of {max(self._total, self._rounds)} is finished."

    def _tell_problem(self) -> None:
        """Note once, in the thread of the run, that a page could not be drawn."""
        if self._problem and not self._told:
            self._told = True
            self._note(f"the page to watch could not be drawn: {self._problem}")

    def finish(self) -> None:
        """Offer the page of the finished run, and wait shortly for a browser that follows it."""
        with self._lock:
            self._over, self._ready = True, 0.0
            self._text = f"The run has ended. This page is in {self._folder / 'report.html'}"
        if time.monotonic() - self._asked < _ATTENTIVE:
            self._taken.wait(_FAREWELL)
        self._tell_problem()

    def read_state(self) -> dict[str, Any]:
        """Say how far the run is, and which page would be served now."""
        with self._lock:
            self._asked = time.monotonic()
            version = self._version() if self._is_due() else self._drawn.version
            return {"page": version, "text": self._text, "over": self._over}

    def read_page(self) -> Drawn:
        """Return the page, drawn anew if the run has grown and the last drawing is long ago."""
        with self._lock:
            self._asked = time.monotonic()
            if self._is_due():
                self._draw()
            return self._drawn

    def note_taken(self, version: str) -> None:
        """Note that a browser has got a page."""
        if self._over and version == self._version():
            self._taken.set()

    def _version(self) -> str:
        return f"{self._rounds}{' over' if self._over else ''}"

    def _is_due(self) -> bool:
        """Whether a page may be drawn that shows more than the last one."""
        grown = self._rounds > 0 and self._version() != self._drawn.version
        return grown and time.monotonic() >= self._ready

    def _draw(self) -> None:
        """Draw the page; the one before stays if that fails."""
        begin, version = time.monotonic(), self._version()
        try:
            page = make_page(self._folder, live=True, finished=self._over).encode()
        except Exception as error:  # whatever it is, the run must not be affected
            self._problem = one_line(f"{type(error).__name__}: {error}")
            page = self._drawn.page
        self._drawn = Drawn(page, version)
        end = time.monotonic()
        self._ready = end + _SHARE * (end - begin)


class _PageServer(ThreadingHTTPServer):
    """A server whose threads hold nothing up: neither the next request nor the end."""

    daemon_threads, block_on_close = True, False
    live: LivePage

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser has gone away."""


class _PageHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the page and of the run's state, and nothing else."""

    server: _PageServer
    server_version, sys_version = "coterie", ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answer with head and body."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the head alone."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        live = self.server.live
        if not _names_this_machine(self.headers.get("Host", "")):
            # a name that somebody else has pointed at this machine, to read the page through it
            self._send(HTTPStatus.FORBIDDEN, b"only for 127.0.0.1 and localhost\n", with_body)
        elif self.path == "/state":
            text = json.dumps(live.read_state()).encode()
            self._send(HTTPStatus.OK, text, with_body, "application/json")
        elif self.path == "/":
            drawn = live.read_page()
            self._send(HTTPStatus.OK, drawn.page, with_body, "text/html", drawn.version)
            if with_body:
                live.note_taken(drawn.version)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is only / here\n", with_body)

    def _send(
        self,
        status: HTTPStatus,
        body: bytes,
        with_body: bool,
        kind: str = "text/plain",
        tag: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**_HEADERS, **({"ETag": f'"{tag}"'} if tag else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no GET or HEAD request in one line."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what Python answers to a method without a function
            code = HTTPStatus.METHOD_NOT_ALLOWED  # its `Allow` is in every answer
        self._send(HTTPStatus(code), b"only GET and HEAD are answered here\n", with_body=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the run."""


def _names_this_machine(host: str) -> bool:
    """Whether a `Host` header has a name of this machine; the port differs behind a tunnel."""
    name, _, port = host.partition(":")
    return name.lower() in _NAMES and (port.isdecimal() or not port)


def _make_waiting_page() -> bytes:
    """Make the page until there is a round to show."""
    text = "The run is being prepared. This page shows its rounds as they come."
    head = f'<p class="brand">Coterie</p>\n<h1>A run</h1>\n{format_note(text)}'
    return make_document("A run", format_body(head, ()), live=True).encode()
