"""Eleven intruders at a deployed run: each is wrong in one way, and is refused with its reason.

    python tests/endurance/refusals.py

A server and three clients as processes, over TLS with keys. Three intruders with registered keys
come before the first round (another configuration, another network, another version of Coterie),
the others while it runs; a server and a client without TLS beyond this machine are the last. The
run must continue to the bits of the federation without them.
"""

import json
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "unit" / "deploy")]

import fleet  # noqa: E402

import flower_sites  # noqa: E402
from coterie.deploy.certificates import make_certificates  # noqa: E402
from coterie.deploy.keys import make_key  # noqa: E402
from site_processes import LIMIT, Sites, processes, wait_for_rounds  # noqa: E402

ROUNDS = 300  # the run must outlast six processes that come late
THREE_CAUSES = "key is not registered there, was removed, or is in use by another client"
EARLY = ("x-config", "x-network", "x-version")  # names behind those of the good clients
SUBMIT = "/v1/control/start-run"
NOWHERE = "192.0.2.1"  # for documentation: no machine has it, so that nobody can listen there
CLEAR = f"coterie: '--insecure' with {NOWHERE} would send models in clear over a network"


class Intruder(NamedTuple):
    """Someone who tries to take part, and words of the line that refuses it."""

    what: str
    reason: str
    name: str = "amiens"  # whose key and data it takes
    options: tuple[str, ...] = ()  # those given last count
    before: str = ""  # Python that changes its installation


def early(sites: Sites, folder: Path) -> list[Intruder]:
    """Clients with a registered key that differ from the server."""
    agreed = folder / "agreed.toml"
    agreed.write_text((sites.folder / "run.toml").read_text().replace("0.05", "0.06"))
    wider = "from coterie.nets.backbones import mlp; mlp._HIDDEN = mlp.MLP.width = 201"
    older = "import coterie; coterie.__version__ = '0.0.1'"
    return [
        Intruder(
            "other configuration", "another configuration", EARLY[0], ("--config", str(agreed))
        ),
        Intruder("other network", "networks have the schema", EARLY[1], (), wider),
        Intruder("other version", "this client 0.0.1", EARLY[2], (), older),
    ]


def late(sites: Sites, folder: Path, expired: tuple[str, ...]) -> list[Intruder]:
    """Clients that cannot even connect."""
    other = make_certificates(folder / "other", ["127.0.0.1"])
    stranger = make_key(folder / "stranger", "stranger").private
    elsewhere = ("--server", f"localhost:{sites.port}")
    return [
        Intruder("without TLS", "it may expect TLS"),
        Intruder("wrong authority", "not signed by the authority", options=("--ca", str(other.ca))),
        Intruder("expired certificate", "has expired", options=expired),
        Intruder("wrong host name", "for another host name", options=elsewhere),
        Intruder("unregistered key", THREE_CAUSES, options=("--key", str(stranger))),
        Intruder("removed key", THREE_CAUSES, "x-removed"),
    ]


def send(sites: Sites, intruder: Intruder, folder: Path) -> "subprocess.Popen[bytes]":
    """Start an intruder as a process."""
    home = sites.town.folder / intruder.name
    words = ["client", "--server", sites.address, "--data", str(sites.data / "amiens.npz")]
    words += ["--folder", str(folder / intruder.what)]
    if intruder.what == "without TLS":
        words += ["--insecure", "--name", intruder.name]
    else:
        words += ["--ca", str(sites.town.tls.ca), "--key", str(home / f"{intruder.name}.key")]
    return sites.deploy(intruder.what, [*words, *intruder.options], intruder.before)


def judge(sites: Sites, intruder: Intruder, process: "subprocess.Popen[bytes]") -> bool:
    """Wait for an intruder's end; whether it was refused with its reason."""
    status, said = process.wait(LIMIT), sites.log(intruder.what).read_text()
    refused = status != 0 and intruder.reason in said
    print(f"{intruder.what}: {'refused' if refused else 'NOT REFUSED'}: {said.splitlines()[-1]}")
    return refused


def submit_run(sites: Sites) -> bool:
    """Call the Control API with the authority's certificate alone, from another address."""
    context = ssl.create_default_context(cafile=sites.town.tls.ca)
    transport = httpx.HTTPTransport(verify=context, local_address="127.0.0.2")
    with httpx.Client(transport=transport) as outside:
        answer = outside.post(f"https://{sites.address}{SUBMIT}")
    refused = answer.status_code == 403
    print(f"run submitted from outside: {'refused' if refused else 'NOT REFUSED'}: {answer.text}")
    return refused


def expose(sites: Sites, folder: Path) -> "list[tuple[str, str, subprocess.Popen[bytes]]]":
    """Start a server and a client without TLS beyond this machine, and a server that may do it.

    Each comes with its name and the line that it must end with.
    """
    served, data = str(sites.folder / "run.toml"), str(sites.data / "amiens.npz")
    server = ["server", served, "--host", NOWHERE, "--port", str(sites.port), "--clients", "3"]
    server += ["--insecure", "--out", str(folder / "exposed")]
    client = ["client", "--server", f"{NOWHERE}:{sites.port}", "--data", data, "--insecure"]
    client += ["--folder", str(folder / "exposed-site")]
    tried = {
        "server in clear": (CLEAR, server),
        "client in clear": (CLEAR, client),
        "server in clear, as asked": (
            f"coterie: cannot listen on {NOWHERE}",
            [*server, "--insecure-network"],
        ),
    }
    return [(what, line, sites.deploy(what, words)) for what, (line, words) in tried.items()]


def judge_exposed(sites: Sites, exposed: "list[tuple[str, str, subprocess.Popen[bytes]]]") -> bool:
    """Wait for the end of all of them; whether each ended with its line and exit status 2."""
    refused = True
    for what, line, process in exposed:
        status, said = process.wait(LIMIT), sites.log(what).read_text()
        held = status == 2 and said.splitlines()[-1].startswith(line)
        print(
            f"{what}: {'ended' if held else 'NOT ENDED SO'} with {status}: {said.splitlines()[-1]}"
        )
        refused = refused and held
    return refused


def wait_to_listen(sites: Sites, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the server listens; seven processes that start at once take their time."""
    deadline = time.monotonic() + LIMIT
    while "listening" not in sites.log("server").read_text():
        assert time.monotonic() < deadline, "the server does not listen"
        assert server.poll() is None, "the server has ended"
        time.sleep(0.05)


def wait_to_end(out: Path, server: "subprocess.Popen[bytes]") -> None:
    """Wait until a run has ended, however long it takes while it records rounds."""
    recorded, deadline = -1, 0.0
    while server.poll() is None:
        if (rounds := (out / "metrics.jsonl").read_text().count("\n")) != recorded:
            recorded, deadline = rounds, time.monotonic() + LIMIT
        assert time.monotonic() < deadline, f"it stopped after {rounds} rounds"
        time.sleep(0.05)


def try_all(sites: Sites, folder: Path, tables: dict[str, Any]) -> tuple[int, int]:
    """Let all of them try; return how many were refused, and how many tried."""
    out = sites.folder / "run"
    server = sites.serve(out, tables)
    for name in fleet.NAMES:
        sites.join(name)
    pairs = [(one, send(sites, one, folder)) for one in early(sites, folder)]
    wait_to_listen(sites, server)
    (sites.town.registry / "x-removed.pub").unlink()
    wait_for_rounds(out, 1, server)
    exposed = expose(sites, folder)
    with flower_sites.expired_server(folder / "expired") as (address, ca):
        options = ("--server", address, "--ca", str(ca))
        pairs += [(one, send(sites, one, folder)) for one in late(sites, folder, options)]
        refused = [judge(sites, *pair) for pair in pairs]
    refused += [submit_run(sites), judge_exposed(sites, exposed)]
    assert server.poll() is None, "the run ended before the last of them had tried"
    wait_to_end(out, server)
    sites.finish()
    return sum(refused), len(refused)


def weights_by_round(out: Path) -> list[str]:
    """The digest of the server's state after every round."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["digest"] for line in lines]


def main() -> None:
    """Run, report; exit status 1 if one is not refused, or the bits differ."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["COTERIE_CACHE"] = str(folder / "cache")
        root = fleet.write_sites(folder / "sites")
        tables = fleet.tables(root, run={"rounds": ROUNDS, "seed": 5}, evaluate={"every": 0})
        fleet.simulate(root, folder / "alone", tables)
        with processes(folder / "town", root, (*fleet.NAMES, *EARLY, "x-removed")) as sites:
            refused, tried = try_all(sites, folder, tables)
        equal = weights_by_round(folder / "town" / "run") == weights_by_round(folder / "alone")
    print(f"{refused} of {tried} refused; the run is {'equal' if equal else 'DIFFERENT'}")
    sys.exit(refused < tried or not equal)


if __name__ == "__main__":
    main()
