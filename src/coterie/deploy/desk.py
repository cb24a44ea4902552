"""The thread of a client that speaks with the server, while another one computes.

It alone uses the link. It answers at once whether a task is known, which tells the server that this
client lives, and puts everything else into a queue.
"""

import queue
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from coterie.deploy.link import ClientLink, Message

_ANSWERED = 100  # keys of answered tasks that are remembered


class _Answer(NamedTuple):
    to: Message
    kind: str
    head: Mapping[str, Any]
    body: bytes


class Desk:
    """Receives requests and sends answers, in a thread of its own."""

    def __init__(self, link: ClientLink, poll: float) -> None:
        self._link, self._poll = link, poll
        self._inbox: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: dict[str, Message] = {}  # by the key of a task: the request to answer
        self._answered: dict[str, None] = {}
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._sent = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="desk", daemon=True)
        self._thread.start()

    def next(self) -> Message:
        """Wait for the next request; what went wrong with the link is raised here."""
        request = self._inbox.get()
        if isinstance(request, BaseException):
            raise request
        return request

    def answer(
        self, to: Message, kind: str, head: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> None:
        """Answer a request; of a task that came twice, the newer one."""
        key = str(to.head.get("key", ""))
        with self._lock:
            if to.kind == "task":
                to = self._open.pop(key, to)
                if kind == "reply":
                    self._answered[key] = None
                    while len(self._answered) > _ANSWERED:
                        del self._answered[next(iter(self._answered))]
            self._sent.clear()
            self._outbox.put(_Answer(to, kind, head or {}, body))
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Send what is left, for so long at most, then stop."""
        self._sent.wait(seconds if not self._outbox.empty() or not self._sent.is_set() else 0.0)
        self._stopped.set()
        self._wake.set()
        self._thread.join(seconds)

    def _serve(self) -> None:
        self._sent.set()
        try:
            while not self._stopped.is_set():
                self._send()
                request = self._link.receive()
                if request is not None:
                    self._sort(request)
                    continue
                self._wake.wait(self._poll)
                self._wake.clear()
        except BaseException as error:
            self._sent.set()
            self._inbox.put(error)

    def _send(self) -> None:
        while not self._outbox.empty():
            answer = self._outbox.get()
            self._link.reply(answer.to, answer.kind, answer.head, answer.body)
        with self._lock:
            if self._outbox.empty():
                self._sent.set()

    def _sort(self, request: Message) -> None:
        key = str(request.head.get("key", ""))
        with self._lock:
            known = key in self._open
            if request.kind == "task":
                self._open[key] = request
        if request.kind == "ping":
            status = "open" if known else "answered" if key in self._answered else "unknown"
            self._link.reply(request, "pong", {"task": status})
        elif not (request.kind == "task" and known):  # else it is in the queue already
            self._inbox.put(request)
