"""A run over TLS whose messages are delayed, and whose connections are cut again and again."""

import json
from pathlib import Path

import fleet
from fleet import Fleet

from flower_sites import Town
from slow_proxy import slow_proxy

SITES = fleet.NAMES[:2]
DELAY, CUT = 0.05, 3.0  # seconds: each way, and from the opening of a connection


def test_a_slow_network_that_cuts_connections_changes_no_bit_and_loses_no_client(
    tmp_path: Path,
) -> None:
    root = fleet.write_sites(tmp_path / "sites", SITES)
    tables = fleet.tables(root, run={"rounds": 4, "seed": 5}, method={"name": "scaffold"})
    town, clients = Town(tmp_path / "town", SITES), Fleet(root, tmp_path, SITES)
    clients.link = server = town.serve()
    with slow_proxy(server.address, DELAY, CUT) as (address, proxy):
        for name in SITES:
            clients.start(name, link=town.connect(address, name))
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
