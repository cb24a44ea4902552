"""An executor over a link: every client is a site of its own, on another machine.

The tasks of a round go out in one call and share its broadcast. Replies are taken from the link in
the order of the tasks, and only so far ahead of the one that is yielded next that they fit into
`_AHEAD_BYTES`; the others wait at the transport.

Every wait has a deadline. A client that does not answer within `executor.timeout` is late. One that
gives no sign of life for `grace` seconds is lost, until it is connected again. One that comes back
earlier, and does not know its task any more, gets it again: a task that is repeated reads the same
state and gives the same bits. One that refuses is out until it has another connection.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core import codec
from coterie.core.task import METHOD, ClientId, ClientInfo, Failure, Reply, Task
from coterie.deploy import messages
from coterie.deploy.link import Message, ServerLink

POLL = 0.2  # seconds between two looks at the link, if nothing arrives
GRACE = 60.0
LONGEST = 3600.0  # seconds for a task where executor.timeout = 0
_AHEAD_BYTES = 64 * 2**20
_AHEAD_LEAST, _AHEAD_MOST = 4, 32  # replies
_PINGS = 8  # that fit into the time in which a sign of life is waited for
_LONGEST_PAUSE = 5.0  # seconds between two of them


@dataclass
class _Asked:
    """A task that was given to a client, and what is out on its behalf."""

    task: Task
    name: str
    head: Mapping[str, Any]
    body: bytes
    deadline: float
    seen: float  # when the client last gave a sign of life
    pinged: float
    id: str = ""  # of the request that is out; empty: none is
    schema: str = ""  # of the networks, if the client was asked to join
    connection: str = ""  # that the client had when it was last asked
    pings: set[str] = field(default_factory=set)
    reply: Reply | None = None

    def fail(self, kind: Any, reason: str) -> None:
        """End it without a result."""
        self.reply = Reply(self.task.client, error=Failure(kind, reason))


class _Refused(NamedTuple):
    """A client that refused to take part, or gave a wrong answer."""

    connection: str  # over which it did
    reason: str


class RemoteSites:
    """Runs tasks on the clients of a federation."""

    def __init__(
        self,
        link: ServerLink,
        clients: Sequence[ClientInfo],
        join: Callable[[ClientId], Mapping[str, Any]],
        folder: Path,
        *,
        run: str,
        states: Mapping[ClientId, tuple[int, str]],
        timeout: float = 0.0,
        grace: float = GRACE,
        poll: float = POLL,
    ) -> None:
        self._link, self._clients, self._join = link, list(clients), join
        self._run, self._states, self._folder = run, dict(states), folder
        self._timeout, self._grace, self._poll = timeout, grace, poll
        self._pause = min(_LONGEST_PAUSE, grace / _PINGS)
        self._connections: Mapping[str, str] = {}  # of clients, when that was last looked at
        self._refused: dict[str, _Refused] = {}  # clients that are out until they reconnect
        self._vanished: set[str] = set()  # clients for which nobody waits while they are away
        self._told: set[str] = set()  # strangers that know that they take no part

    def clients(self) -> Sequence[ClientInfo]:
        """List the clients of the federation."""
        return self._clients

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Send the tasks to their clients and yield the replies in order."""
        asked = self._ask(list(tasks))
        if not asked:
            return
        affordable = _AHEAD_BYTES // max(1, asked[0].task.down.nbytes())
        ahead = max(_AHEAD_LEAST, min(affordable, _AHEAD_MOST))
        for position, one in enumerate(asked):
            while one.reply is None:
                self._look(asked[position : position + ahead])
                if one.reply is None:
                    self._link.wait(self._poll)
            reply, one.reply, one.body = one.reply, None, b""
            if reply.state and one.task.op == "update" and one.task.program == METHOD:
                self._states[reply.client] = (one.task.round.index, reply.state)
            yield reply

    def close(self) -> None:
        """Do nothing: clients wait for a server that resumes the run."""

    def hand_out(self, model: bytes, round: int) -> None:
        """Give all clients the trained model; it may take as long as a task."""
        self._tell("model", self._stamp(round=round), model, self._timeout or LONGEST)

    def end(self, reason: str) -> None:
        """Tell all clients that the run is over."""
        self._tell("end", self._stamp(reason=reason), b"", self._grace)

    def _tell(self, kind: str, head: Mapping[str, Any], body: bytes, seconds: float) -> None:
        """Send the same to all clients that are connected, and wait until they have it."""
        connected = self._list_connected()
        there = [info.name for info in self._clients if info.name in connected]
        ids = self._send([Message(name, kind, head, body) for name in there])
        until = time.monotonic() + seconds
        while ids and time.monotonic() < until:
            answered = {answer.id for answer in self._link.receive(ids)}
            if ids := [id for id in ids if id not in answered]:
                self._link.wait(self._poll)

    def _ask(self, tasks: Sequence[Task]) -> list[_Asked]:
        """Send all tasks whose clients are connected, in one call."""
        now, asked = time.monotonic(), list[_Asked]()
        names = {info.id: info.name for info in self._clients}
        connected = self._list_connected()
        packed, broadcast = None, b""
        for task in tasks:
            if packed is None or packed is not task.down:
                packed, broadcast = task.down, codec.pack(task.down)
            head, body = messages.write_task(task, broadcast)
            deadline = now + (self._timeout or LONGEST)
            one = _Asked(task, names[task.client], head, body, deadline, now, now)
            asked.append(one)
            if one.name in self._refused:
                one.fail("lost", self._refused[one.name].reason)
            elif one.name in self._vanished:
                one.fail("lost", "it is not connected")
        self._turn_away(connected - set(names.values()))
        waiting = [one for one in asked if one.reply is None and one.name in connected]
        self._send_tasks(waiting)
        return asked

    def _list_connected(self) -> set[str]:
        """List who is connected; those that were away and are back get tasks again."""
        self._connections = self._link.connections()
        connected = set(self._connections)
        self._vanished -= connected
        for name in self._refused.keys() & connected:
            if self._connections[name] != self._refused[name].connection:
                del self._refused[name]
        return connected

    def _turn_away(self, strangers: set[str]) -> None:
        """Tell clients that came too late that the run takes place without them."""
        new = sorted(strangers - self._told)
        self._told |= strangers
        reason = "the run has begun without it"
        self._send([Message(name, "refuse", self._stamp(reason=reason)) for name in new])

    def _look(self, window: Sequence[_Asked]) -> None:
        """Handle what has arrived for some tasks, then what is overdue."""
        waiting = [one for one in window if one.reply is None]
        by_id = {one.id: one for one in waiting if one.id}
        by_ping = {ping: one for one in waiting for ping in one.pings}
        answers = self._link.receive([*by_id, *by_ping])
        for answer in answers:
            if one := by_id.get(answer.id):
                one.id = ""
                self._take(one, answer)
        again = [
            by_ping[answer.id]
            for answer in answers
            if answer.id in by_ping and self._take_pong(by_ping[answer.id], answer)
        ]
        connected = self._list_connected()
        self._send_tasks([one for one in again if one.reply is None and one.name in connected])
        self._check_overdue([one for one in waiting if one.reply is None], connected)

    def _take(self, one: _Asked, answer: Message) -> None:
        """Handle the answer to a task, or to what went before it."""
        if answer.error:  # it did not arrive; it is sent again when the client is there
            return
        one.seen = time.monotonic()
        if answer.kind == "reply":
            folder = self._folder / "spool" / "received"
            one.reply = messages.read_reply(answer.head, answer.body, one.task, folder)
        elif answer.kind == "stranger":
            head = self._stamp(**self._join(one.task.client))
            one.schema = str(head["schema"])
            head["state"] = self._states.get(one.task.client)
            head["last"] = one.task.round.index - (one.task.op == "update")
            one.connection = self._connections.get(one.name, "")
            (one.id,) = self._send([Message(one.name, "join", head)])
        elif answer.kind == "joined" and answer.head.get("schema") == one.schema:
            self._send_tasks([one])
        else:
            reason = str(answer.head.get("reason", f"it answered {answer.kind!r:.40}"))[:2000]
            self._refused[one.name] = _Refused(one.connection, f"refused: {reason}")
            one.fail("lost", self._refused[one.name].reason)

    def _take_pong(self, one: _Asked, answer: Message) -> bool:
        """Note a sign of life; return whether the client has to get its task again."""
        one.pings.discard(answer.id)
        if answer.error or answer.kind != "pong":
            return False
        one.seen = time.monotonic()
        return answer.head.get("task") == "unknown"

    def _check_overdue(self, waiting: Sequence[_Asked], connected: set[str]) -> None:
        """Give up on clients that are late or gone; ask the others whether they are there."""
        now, due = time.monotonic(), []
        for one in waiting:
            if one.name in connected:  # also one that takes long to fetch its task or to upload
                one.seen = now
            if now >= one.deadline:
                limit = f"executor.timeout = {self._timeout:g}" if self._timeout else LONGEST
                one.fail("late", f"no answer within {limit} s")
            elif now - one.seen > self._grace:
                self._vanished.add(one.name)
                one.fail("lost", f"no sign of life for {self._grace:g} s")
            elif one.name in connected and now - one.pinged > self._pause * (1 + len(one.pings)):
                due.append(one)  # later and later: pings must not pile up before a slow client
        self._send_tasks([one for one in due if not one.id])
        pings = [Message(one.name, "ping", self._stamp(key=one.head["key"])) for one in due]
        for one, ping in zip(due, self._send(pings), strict=True):
            one.pinged = now
            one.pings.add(ping)

    def _send_tasks(self, asked: Sequence[_Asked]) -> None:
        tasks = [Message(one.name, "task", self._stamp(**one.head), one.body) for one in asked]
        for one, id in zip(asked, self._send(tasks), strict=True):
            one.id, one.connection = id, self._connections.get(one.name, "")

    def _send(self, requests: Sequence[Message]) -> list[str]:
        return self._link.send(requests) if requests else []

    def _stamp(self, **head: Any) -> dict[str, Any]:
        return {"run": self._run, **head}
