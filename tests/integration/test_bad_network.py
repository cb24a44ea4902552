"""Messages and runs over TLS while the network swallows answers and cuts connections."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import httpx
import pytest
from fleet import Fleet
from flwr.supernode.fleet_http_client import FleetHttpClient

from coterie.deploy.flower.server import FlowerServerLink
from coterie.deploy.link import Message
from flower_sites import Echo, Town, collect, take
from slow_proxy import slow_proxy

SITES = fleet.NAMES[:2]
DELAY, CUT = 0.05, 3.0  # seconds: each way, and from the opening of a connection
MOST = 12  # cuts; a machine too busy to say anything in three seconds gets through after them
OFFER_SECONDS = "coterie.deploy.flower.server._OFFER_SECONDS"


def test_a_slow_network_that_cuts_connections_changes_no_bit_and_loses_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "POLL", 0.1)  # as it is between hosts
    root = fleet.write_sites(tmp_path / "sites", SITES)
    tables = fleet.tables(root, run={"rounds": 4, "seed": 5}, method={"name": "scaffold"})
    town, clients = Town(tmp_path / "town", SITES), Fleet(root, tmp_path, SITES)
    clients.link = server = town.serve()
    with slow_proxy(server.address, DELAY, CUT, MOST) as (address, proxy):
        for name in SITES:
            clients.start(name, link=town.connect(address, name, patience=120.0))
        clients.run(tmp_path / "deployed", tables, start=False)
        clients.join()
    server.close()
    assert len(proxy.cuts) > len(SITES), "the run was over before its connections were cut"
    assert clients.ended == dict.fromkeys(SITES, "the run is finished")
    fleet.simulate(root, tmp_path / "simulated", tables)
    deployed, simulated = tmp_path / "deployed", tmp_path / "simulated"
    lines = (deployed / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["lost"] for line in lines] == [{}] * 4
    assert fleet.digests(deployed) == fleet.digests(simulated)
    weights = [(run / "model.safetensors").read_bytes() for run in (deployed, simulated)]
    assert weights[0] == weights[1]


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path, ["north"])


@pytest.fixture
def server(town: Town) -> Iterator[FlowerServerLink]:
    link = town.serve()
    yield link
    link.close()


def test_a_request_that_a_broken_connection_swallowed_is_offered_again(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OFFER_SECONDS, 0.1)
    link = town.connect(server.address, "north")
    pull = link._client.PullMessages

    def swallow(request: Any) -> None:
        assert pull(request).messages_list
        raise httpx.ReadError("cut")

    (id,) = server.send([Message("north", "task", {}, b"once")])
    with monkeypatch.context() as patch:
        patch.setattr(link._client, "PullMessages", swallow)
        assert link.receive() is None  # away, which is no error yet
    echo = Echo(link)
    assert collect(server, [id])[0].body == b"ecno"
    echo.close()


def test_a_request_that_a_client_works_on_is_not_given_to_it_again(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OFFER_SECONDS, 0.0)
    link = town.connect(server.address, "north")
    (id,) = server.send([Message("north", "task")])
    request = take(link)
    for _ in range(3):
        assert server.receive([id]) == []
        assert link.receive() is None
    link.reply(request, "echo", {}, b"done")
    assert link.receive() is None
    assert collect(server, [id])[0].body == b"done"
    link.close()


def test_what_arrived_of_a_request_is_kept_when_the_connection_breaks(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.deploy.flower.client._AT_ONCE", 1)
    link = town.connect(server.address, "north")
    body = random.Random(0).randbytes(12 * 2**20)  # three chunks
    server.send([Message("north", "task", {}, body)])
    pull, attempts, pulled = link._client.PullObject, list[str](), list[str]()

    def break_every_second(request: Any) -> Any:
        attempts.append(request.object_id)
        if len(attempts) % 2:
            raise httpx.ReadError("cut")
        response = pull(request)
        pulled.append(request.object_id)
        return response

    monkeypatch.setattr(link._client, "PullObject", break_every_second)
    assert take(link).body == body
    assert len(pulled) == len(set(pulled)) >= 3
    link.close()


def test_a_client_whose_activation_was_cut_off_waits_until_it_is_let_in(
    town: Town, server: FlowerServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate, statuses = FleetHttpClient.ActivateNode, list[int]()

    def cut_the_first(self: FleetHttpClient, request: Any) -> Any:
        if len(statuses) == 2:  # what was activated first has timed out
            (node,) = server._nodes()
            server._state.deactivate_node(node)
        try:
            response = activate(self, request)
        except httpx.HTTPStatusError as error:
            statuses.append(error.response.status_code)
            raise
        statuses.append(200)
        if len(statuses) == 1:
            raise httpx.ReadError("cut")
        return response

    monkeypatch.setattr(FleetHttpClient, "ActivateNode", cut_the_first)
    link = town.connect(server.address, "north")
    assert statuses == [200, 412, 200]
    assert server.peers() == {"north": True}
    link.close()
