"""Messages over pipes: whole or not at all, however they are cut, until a deadline."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.task import Attempt, Failure, Reply, Round, Task
from coterie.executors import wire

PAST = 0.0  # of the monotonic clock: a deadline that is over
ROUND = Round(3, 10, "train", 1, 5, 4, seed=7)
PAYLOAD = Bundle({"model": {"w": torch.tensor([1.5, -2.0])}}, {"n": 3})


class Pipe:
    """A pipe whose ends can be closed once each."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        self._open = {self.source, self.sink}

    def close(self, *ends: int) -> None:
        for end in self._open & set(ends or self._open):
            os.close(end)
            self._open.remove(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def short(call: Callable[[int, object], object], size: int) -> Callable[[int, object], object]:
    """A system call that takes or gives a few bytes at a time, as it may."""
    return lambda handle, what: call(
        handle,
        min(what, size) if isinstance(what, int) else bytes(what[:size]),  # type: ignore[index]
    )


def test_messages_arrive_whole_and_in_order(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    wire.send(sink, {"kind": "down"}, b"body")
    wire.send(sink, {"kind": "é", "number": 0.1})
    assert wire.receive(source) == ({"kind": "down"}, b"body")
    assert wire.receive(source) == ({"kind": "é", "number": 0.1}, b"")


def test_a_message_may_come_in_pieces(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe.source, pipe.sink
    body = bytes(range(256))
    wire.send(sink, {"kind": "down"}, body)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", short(os.read, 3))
        received = wire.receive(source)
    assert received == ({"kind": "down"}, body)


def test_a_message_may_be_sent_in_pieces(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe.source, pipe.sink
    body = bytes(range(256))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short(os.write, 3))
        wire.send(sink, {"kind": "down"}, body)
    assert wire.receive(source) == ({"kind": "down"}, body)


def test_a_message_may_be_larger_than_the_pipe(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    body = os.urandom(300_000)
    thread = threading.Thread(target=wire.send, args=(sink, {"kind": "down"}, body))
    thread.start()
    assert wire.receive(source) == ({"kind": "down"}, body)
    thread.join()


def test_the_end_of_the_other_side_is_noticed(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    pipe.close(sink)
    with pytest.raises(wire.Closed):
        wire.receive(source)
    with pytest.raises(wire.Closed):
        wire.receive(source, PAST)


@pytest.mark.parametrize("left", [1, 11, 13, -1])
def test_the_end_of_the_other_side_in_the_middle_of_a_message_is_noticed(
    left: int, pipe: Pipe
) -> None:
    source, sink = pipe.source, pipe.sink
    os.write(sink, message()[:left])
    pipe.close(sink)
    with pytest.raises(wire.Closed):
        wire.receive(source)


def test_sending_to_nobody_is_noticed(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    pipe.close(source)
    with pytest.raises(wire.Closed):
        wire.send(sink, {"kind": "down"})


def test_a_pipe_that_is_closed_on_this_side_counts_as_closed() -> None:
    with pytest.raises(wire.Closed):
        wire.receive(-1)
    with pytest.raises(wire.Closed):
        wire.send(-1, {"kind": "down"})


def message() -> bytes:
    """The bytes of one message."""
    pipe = Pipe()
    wire.send(pipe.sink, {"kind": "down"}, b"body")
    data = os.read(pipe.source, 1000)
    pipe.close()
    return data


def test_after_the_deadline_nobody_is_waited_for(pipe: Pipe) -> None:
    with pytest.raises(wire.Late):
        wire.receive(pipe.source, PAST)


def test_a_message_of_which_a_part_is_missing_at_the_deadline_is_late(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    os.write(sink, message()[:-1])
    with pytest.raises(wire.Late):
        wire.receive(source, PAST)


def test_a_message_that_has_come_is_read_whatever_the_time(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    wire.send(sink, {"kind": "down"}, b"body")
    assert wire.receive(source, PAST) == ({"kind": "down"}, b"body")


@pytest.mark.parametrize("own", [None, Bundle(), PAYLOAD])
def test_a_task_survives_the_wire(own: Bundle | None, pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    down = Bundle()
    task = Task("personal", 2, ROUND, down, own, "probe", Attempt(4, 2, (0, 1)))
    wire.send(sink, wire.task_head(task), b"" if own is None else codec.encode(own))
    again = wire.read_task(*wire.receive(source), down)
    assert again.down is down
    assert (again.own is None) == (own is None)
    if own is not None and again.own is not None:
        assert again.own.digest() == own.digest()
    for name in ("op", "client", "round", "program", "attempt"):
        assert getattr(again, name) == getattr(task, name)


@pytest.mark.parametrize("error", [None, Failure("failed", "a bug", "Traceback ...")])
def test_a_reply_survives_the_wire(error: Failure | None, pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    reply = Reply(2, PAYLOAD, 60, {"loss": 0.1}, error, 1.25, "ab" * 32)
    wire.send(sink, wire.reply_head(reply), codec.encode(reply.up))
    again = wire.read_reply(*wire.receive(source))
    assert again.up.digest() == PAYLOAD.digest()
    for name in ("client", "examples", "metrics", "error", "seconds", "state"):
        assert getattr(again, name) == getattr(reply, name)


def test_metrics_that_are_not_finite_survive_the_wire(pipe: Pipe) -> None:
    source, sink = pipe.source, pipe.sink
    reply = Reply(0, metrics={"loss": float("inf")})
    wire.send(sink, wire.reply_head(reply), codec.encode(reply.up))
    assert wire.read_reply(*wire.receive(source)).metrics == {"loss": float("inf")}
