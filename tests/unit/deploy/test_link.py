"""The link in memory keeps the contract of links."""

import threading

from coterie.deploy.link import MemoryLink, Message


def test_a_request_is_answered_under_its_id() -> None:
    link = MemoryLink(["a", "b"])
    client = link.connect("a")
    assert link.peers() == {"a": True, "b": False}
    first, second = link.send([Message("a", "one"), Message("a", "two", {"n": 1}, b"body")])
    assert link.receive([first, second]) == []
    requests = [client.receive(), client.receive(), client.receive()]
    assert [r.kind for r in requests if r] == ["one", "two"] and requests[2] is None
    assert requests[1] is not None
    client.reply(requests[1], "done", {"n": 2}, b"answer")
    (answer,) = link.receive([first, second])
    assert (answer.id, answer.kind, answer.body) == (second, "done", b"answer")
    assert link.receive([second]) == []


def test_requests_to_clients_that_are_away_fail() -> None:
    link = MemoryLink(["a"])
    (id,) = link.send([Message("a", "one")])
    assert link.receive([id])[0].error


def test_requests_to_an_earlier_life_of_a_client_fail() -> None:
    link = MemoryLink(["a"])
    link.connect("a")
    (id,) = link.send([Message("a", "one")])
    again = link.connect("a")
    assert again.receive() is None and link.receive([id])[0].error
    again.close()
    assert link.peers() == {"a": False}


def test_a_server_that_waits_is_woken_by_an_answer_or_a_failure() -> None:
    link, hour = MemoryLink(["a"]), 3600.0  # longer than a test may take
    client = link.connect("a")
    link.send([Message("a", "one"), Message("a", "two")])
    request = client.receive()
    assert request is not None
    threading.Timer(0.01, client.reply, (request, "done", {})).start()
    link.wait(hour)
    assert link.receive([request.id])
    threading.Timer(0.01, client.close).start()
    link.wait(hour)


def test_a_client_that_reconnects_has_another_connection() -> None:
    link = MemoryLink(["a", "b"])
    link.connect("a")
    first = link.connections()
    link.connect("a")
    second = link.connections()
    link.disconnect("a")
    assert [set(first), set(second), set(link.connections())] == [{"a"}, {"a"}, set()]
    assert first["a"] != second["a"]
