"""The thread that speaks with the server."""

import time

import pytest

from coterie.core.errors import RunFailed
from coterie.deploy.desk import Desk
from coterie.deploy.link import MemoryLink, Message


def wait_for(link: MemoryLink, id: str) -> Message:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if answers := link.receive([id]):
            return answers[0]
        time.sleep(0.001)
    raise AssertionError("no answer")


def status(link: MemoryLink, key: str) -> str:
    (id,) = link.send([Message("a", "ping", {"key": key})])
    return str(wait_for(link, id).head["task"])


def test_it_tells_whether_a_task_is_known_while_nobody_answers_it() -> None:
    link = MemoryLink(["a"])
    desk = Desk(link.connect("a"), 0.001)
    link.send([Message("a", "task", {"key": "k"})])
    request = desk.next()
    assert [status(link, key) for key in ("k", "other")] == ["open", "unknown"]
    desk.answer(request, "reply")
    assert status(link, "k") == "answered"
    desk.close(5.0)


def test_a_task_that_comes_twice_is_done_once_and_answered_under_the_newer_id() -> None:
    link = MemoryLink(["a"])
    desk = Desk(link.connect("a"), 0.001)
    _, second = link.send([Message("a", "task", {"key": "k"})] * 2)
    request = desk.next()
    assert status(link, "k") == "open"  # by then both have been received
    desk.answer(request, "reply")
    assert wait_for(link, second).kind == "reply"
    desk.close(5.0)


def test_what_is_left_is_sent_before_it_stops() -> None:
    link = MemoryLink(["a"])
    desk = Desk(link.connect("a"), 0.001)
    (id,) = link.send([Message("a", "end")])
    desk.answer(desk.next(), "bye")
    desk.close(5.0)
    assert wait_for(link, id).kind == "bye"


def test_an_error_of_the_link_is_raised_where_requests_are_waited_for() -> None:
    class Broken:
        def receive(self) -> Message | None:
            raise RunFailed("the server is gone")

    desk = Desk(Broken(), 0.001)  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match="the server is gone"):
        desk.next()
