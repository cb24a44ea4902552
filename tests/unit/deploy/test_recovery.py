"""Clients and servers that vanish, come back, are late or send rubbish."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fleet
import pytest
from fleet import Fleet, FragileLink

import resuming
import toy
from coterie.core.errors import CheckpointError, ConfigError, DataError
from coterie.deploy.link import MemoryClientLink, Message
from coterie.engine.record import Event, NoteEvent, RoundEvent

STATEFUL = {"run": {"rounds": 3, "seed": 5}, "method": {"name": "scaffold"}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.write_sites(tmp_path_factory.mktemp("data") / "sites")


@pytest.fixture(scope="module")
def whole(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The digests of a run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    fleet.simulate(sites, out, fleet.tables(sites, **STATEFUL))
    return fleet.digests(out)


class Lost:
    """A recorder of who was lost or rejected, by round, and of who has no model in the end."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, str]] = []
        self.notes: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEvent):
            self.rounds.append({**event.lost, **event.rejected})
        elif isinstance(event, NoteEvent) and "personal model" in event.text:
            self.notes.append(event.text)


@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
def test_a_client_that_is_killed_and_started_again_keeps_the_bits(
    sent: bool, sites: Path, whole: list[tuple[str, str]], tmp_path: Path
) -> None:
    clients = Fleet(sites, tmp_path)
    clients.revived_in["berlin"] = tmp_path
    clients.start("amiens")
    clients.start("berlin", link=FragileLink(clients.link.connect("berlin"), 3, sent))
    clients.start("cadiz")
    clients.run(tmp_path / "run", fleet.tables(sites, **STATEFUL), start=False)
    clients.join()
    assert fleet.digests(tmp_path / "run") == whole
    assert clients.ended["berlin"] == "the run is finished"


@pytest.mark.parametrize("by", [KeyboardInterrupt, toy.Killed])
def test_a_server_that_is_stopped_resumes_to_the_same_bits(
    by: type[BaseException], sites: Path, whole: list[tuple[str, str]], tmp_path: Path
) -> None:
    tables = fleet.tables(sites, checkpoint={"every": 1}, **STATEFUL)
    clients, out = Fleet(sites, tmp_path), tmp_path / "run"
    with pytest.raises(BaseException):  # noqa: B017 - a kill has a class of its own
        clients.run(out, tables, recorders=[toy.StopAfter(1, by)])
    clients.run(out, tables, start=False, resume=True)
    clients.join()
    assert fleet.digests(out) == whole


def test_a_finished_run_that_is_resumed_lets_its_clients_go(sites: Path, tmp_path: Path) -> None:
    tables, clients = fleet.tables(sites, run={"rounds": 1, "seed": 5}), Fleet(sites, tmp_path)
    clients.run(tmp_path / "run", tables)
    clients.join()
    with pytest.raises(ConfigError, match="holds a run already"):
        clients.run(tmp_path / "run", tables, start=False)
    clients.run(tmp_path / "run", tables, resume=True)
    clients.join()


def test_a_server_refuses_to_resume_what_is_not_its_run_and_changes_nothing(
    sites: Path, whole: list[tuple[str, str]], tmp_path: Path
) -> None:
    clients, out = Fleet(sites, tmp_path), tmp_path / "run"
    tables = fleet.tables(sites, checkpoint={"every": 1}, **STATEFUL)
    with pytest.raises(toy.Killed):
        clients.run(out, tables, recorders=[toy.StopAfter(1, toy.Killed)])

    def check(kind: type[Exception], words: str, tables: dict[str, Any] = tables) -> None:
        before = resuming.files(out)
        with pytest.raises(kind, match=words):
            clients.run(out, tables, start=False, resume=True)
        assert resuming.files(out) == before

    file = out / "federation.json"
    text = file.read_text()
    other = text.replace('"classes": [\n  0,', '"classes": [\n  7,')
    assert other != text
    file.write_text(other)
    check(DataError, "are not the ones it was started with")
    file.write_text(text[:-9])
    check(CheckpointError, r"federation\.json cannot be read")
    file.unlink()
    check(CheckpointError, r"federation\.json is missing")
    file.write_text(text)
    (out / "config.toml").unlink()
    seed = {**tables, "run": {"rounds": 3, "seed": 6}}
    check(ConfigError, "run.seed is 6 here and was 5 in the checkpoint of round 1", seed)
    clients.run(out, tables, start=False, resume=True)
    clients.join()
    assert fleet.digests(out) == whole


def test_a_client_without_the_state_that_the_run_relies_on_is_refused(
    sites: Path, tmp_path: Path
) -> None:
    clients, lost = Fleet(sites, tmp_path), Lost()
    clients.revived_in["berlin"] = tmp_path / "new-disk"
    clients.start("amiens")
    clients.start("berlin", link=FragileLink(clients.link.connect("berlin"), 3))
    clients.start("cadiz")
    tables = fleet.tables(sites, **STATEFUL)
    clients.run(tmp_path / "run", tables, start=False, recorders=[lost])
    assert "the run relies on a state of this client" in lost.rounds[-1]["1"]
    assert lost.rounds[0] == {}


def test_a_site_that_has_left_stays_without_its_own_model_and_the_run_ends(
    sites: Path, tmp_path: Path
) -> None:
    clients, lost = Fleet(sites, tmp_path), Lost()
    clients.revived_in["berlin"] = tmp_path / "new-disk"
    clients.start("amiens")
    clients.start("berlin", link=FragileLink(clients.link.connect("berlin"), 3))
    clients.start("cadiz")
    tables = fleet.tables(sites, run=STATEFUL["run"], method={"name": "solo"})
    result = clients.run(tmp_path / "run", tables, start=False, recorders=[lost])
    clients.join()
    assert "the run relies on a state of this client" in lost.rounds[-1]["1"]
    assert lost.notes == [f"client 1 has no personal model: {lost.rounds[-1]['1'][6:]}"]
    assert (result.folder / "report.html").exists()


class Wrapped:
    """A client's link that changes what is answered to tasks."""

    def __init__(self, link: MemoryClientLink, kind: str) -> None:
        self._link, self._kind = link, kind
        self.receive, self.close = link.receive, link.close

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        if kind == "reply" and self._kind == "silent":
            return
        if kind == "reply" and self._kind == "rubbish":
            head, body = {**head, "examples": "many"}, b"rubbish"
        if kind == "reply" and self._kind == "cut":
            body = body[: len(body) // 2]
        self._link.reply(to, kind, head, body)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("silent", "late: no answer within"), ("rubbish", "damaged"), ("cut", "damaged")],
)
def test_a_bad_client_is_lost_and_the_run_goes_on(
    kind: str, reason: str, sites: Path, tmp_path: Path
) -> None:
    clients, lost = Fleet(sites, tmp_path), Lost()
    clients.start("amiens")
    clients.start("berlin", link=Wrapped(clients.link.connect("berlin"), kind))
    clients.start("cadiz")
    tables = fleet.tables(
        sites,
        run={"rounds": 1, "seed": 5},
        evaluate={"every": 0, "with": []},
        executor={"timeout": 8.0},
    )
    result = clients.run(tmp_path / "run", tables, start=False, recorders=[lost])
    assert reason in lost.rounds[0]["1"]
    assert not result.history[0].skipped


class Slow:
    """A link whose uploads take longer than a sign of life is waited for."""

    def __init__(self, link: MemoryClientLink, seconds: float) -> None:
        self._link, self._seconds = link, seconds
        self.close, self.kinds = link.close, list[str]()

    def receive(self) -> Message | None:
        request = self._link.receive()
        self.kinds += [request.kind] if request else []
        return request

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        if kind == "reply":
            time.sleep(self._seconds)
        self._link.reply(to, kind, head, body)


def test_a_client_that_uploads_for_longer_than_the_grace_is_not_lost(
    sites: Path, tmp_path: Path
) -> None:
    clients, lost = Fleet(sites, tmp_path), Lost()
    slow = Slow(clients.link.connect("berlin"), 2.0)
    clients.start("amiens")
    clients.start("berlin", link=slow)
    clients.start("cadiz")
    tables = fleet.tables(sites, run={"rounds": 1, "seed": 5})
    clients.run(tmp_path / "run", tables, start=False, recorders=[lost], grace=0.8)
    clients.join()
    assert lost.rounds == [{}]
    uploads, pings = slow.kinds.count("task"), slow.kinds.count("ping")
    assert 0 < pings <= 7 * uploads  # 20 fit into two seconds if none waits for an answer


def test_a_client_that_vanishes_is_lost_until_it_comes_back(sites: Path, tmp_path: Path) -> None:
    clients, lost = Fleet(sites, tmp_path), Lost()
    clients.start("amiens")
    clients.start("berlin", link=FragileLink(clients.link.connect("berlin"), 1))
    clients.start("cadiz")
    tables = fleet.tables(sites, run={"rounds": 2, "seed": 5})
    clients.run(tmp_path / "run", tables, start=False, recorders=[lost], grace=4.0)
    assert lost.rounds[1]["1"] == "lost: it is not connected"  # nobody waits for it again
