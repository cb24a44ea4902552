"""What the transport between a server and its sites must offer, and one that stays in memory.

A server sends requests to named peers and asks, without waiting, which of them were answered. A
client takes one request after the other and answers it. Nothing else is known about the transport,
so that one can replace another.
"""

import itertools
import json
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(frozen=True)
class Message:
    """A request to a client, or its answer.

    `peer` is the client, by the name under which the server's operator knows it. A request that
    was sent and its answer have the same `id`; `error` says why a request will not be answered.
    """

    peer: str
    kind: str
    head: Mapping[str, Any] = field(default_factory=dict)  # JSON
    body: bytes = b""
    id: str = ""
    error: str = ""


class ServerLink(Protocol):
    """The server's end of the transport."""

    def peers(self) -> Mapping[str, bool]:
        """Tell of every registered client whether it is connected now."""

    def connections(self) -> Mapping[str, str]:
        """Identify the connection of every client that has one; one that reconnects has another."""

    def send(self, messages: Sequence[Message]) -> list[str]:
        """Send requests in one call and return their ids; a body they share is sent once."""

    def receive(self, ids: Collection[str]) -> list[Message]:
        """Return the requests of `ids` that were answered or failed by now, without waiting."""

    def wait(self, seconds: float) -> None:
        """Wait until something has arrived since the last wait, for so long at most."""

    def close(self) -> None:
        """Release what the link holds; safe to call twice."""


class ClientLink(Protocol):
    """A client's end of the transport."""

    def receive(self) -> Message | None:
        """Return the next request, without waiting; None if there is none."""

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Answer a request."""

    def close(self) -> None:
        """Release what the link holds; safe to call twice."""


class MemoryLink:
    """A server's link to clients in the same process: one queue for each direction."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._requests: dict[str, deque[Message]] = {name: deque() for name in names}
        self._connected: dict[str, bool] = dict.fromkeys(names, False)
        self._connections: dict[str, str] = {}  # the newest of each client
        self._answers: dict[str, Message] = {}
        self._taken: dict[str, Message] = {}  # requests that a client has and has not answered
        self._arrived = threading.Event()

    def peers(self) -> Mapping[str, bool]:
        """Tell of every client whether it is connected now."""
        with self._lock:
            return dict(self._connected)

    def connections(self) -> Mapping[str, str]:
        """Identify the connection of every client that has one."""
        with self._lock:
            return {name: id for name, id in self._connections.items() if self._connected[name]}

    def send(self, messages: Sequence[Message]) -> list[str]:
        """Queue requests for their clients; one to a client that is not connected fails."""
        ids = []
        with self._lock:
            for message in messages:
                id = str(next(self._numbers))
                ids.append(id)
                if self._connected.get(message.peer):
                    head = json.loads(json.dumps(message.head))  # as any other transport has it
                    self._requests[message.peer].append(replace(message, head=head, id=id))
                else:
                    self._fail(replace(message, id=id))
        return ids

    def receive(self, ids: Collection[str]) -> list[Message]:
        """Take the answers that have arrived."""
        with self._lock:
            return [self._answers.pop(id) for id in ids if id in self._answers]

    def wait(self, seconds: float) -> None:
        """Wait for an answer or a failure, for so long at most."""
        self._arrived.wait(seconds)
        self._arrived.clear()

    def close(self) -> None:
        """Disconnect all clients."""
        with self._lock:
            self._connected = dict.fromkeys(self._connected, False)

    def connect(self, name: str) -> "MemoryClientLink":
        """Connect a client; requests to an earlier life of it fail."""
        with self._lock:
            self._drop(name)
            self._connected[name] = True
            self._connections[name] = str(next(self._numbers))
        return MemoryClientLink(self, name)

    def disconnect(self, name: str) -> None:
        """Disconnect a client; its unanswered requests fail."""
        with self._lock:
            self._connected[name] = False
            self._drop(name)

    def take(self, name: str) -> Message | None:
        """Take the next request to a client."""
        with self._lock:
            queue = self._requests[name]
            if not queue or not self._connected[name]:
                return None
            message = queue.popleft()
            self._taken[message.id] = message
            return message

    def put(self, answer: Message) -> None:
        """Deliver the answer of a client."""
        with self._lock:
            self._taken.pop(answer.id, None)
            self._answers[answer.id] = answer
        self._arrived.set()

    def _drop(self, name: str) -> None:
        """Let the requests fail that a client has not answered."""
        for message in [m for m in self._taken.values() if m.peer == name]:
            del self._taken[message.id]
            self._fail(message)
        for message in self._requests.get(name, ()):
            self._fail(message)
        self._requests[name] = deque()

    def _fail(self, message: Message) -> None:
        self._answers[message.id] = replace(message, body=b"", error="the client is not connected")
        self._arrived.set()


class MemoryClientLink:
    """A client's end of a `MemoryLink`."""

    def __init__(self, server: MemoryLink, name: str) -> None:
        self._server, self._name = server, name

    def receive(self) -> Message | None:
        """Take the next request."""
        return self._server.take(self._name)

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Answer a request."""
        plain = json.loads(json.dumps(head))
        self._server.put(Message(self._name, kind, plain, body, to.id))

    def close(self) -> None:
        """Disconnect."""
        self._server.disconnect(self._name)
