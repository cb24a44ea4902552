"""Runs on Ray: the bits of serial, on two nodes, with a node that dies, on a cluster of our own."""

import ipaddress
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import CASES

import ray_nodes
import toy
from coterie.core.errors import RunFailed
from coterie.data.datasets import default_cache
from coterie.executors.cluster.executor import Supply
from ray_nodes import HEAD, OTHER, Nodes, run, same

pytestmark = pytest.mark.slow

STATEFUL: dict[str, Any] = {
    "run": {"rounds": 12},
    "method": {"name": "toy_methods:TwoModels"},
    "net": {"norm": "bn"},
}
TRIED = {"mfcl": 2, "scaffold": 2, "moon": 1, "fedavg-byol": 1}  # and how many actors


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes with a core each and a data cache of their own, in use by this process."""
    # Ray's sockets need a short path
    folder = Path("/tmp") / f"coterie-test-{os.getpid()}"
    kept = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}
    cache = {"COTERIE_CACHE": str(tmp_path_factory.mktemp("node-cache"))}
    with ray_nodes.two_nodes(folder, {HEAD: 1, OTHER: 1}, cache) as started:
        os.environ.update(started.token)
        yield started
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def on(nodes: Nodes, workers: int = 2) -> dict[str, Any]:
    return {"kind": "ray", "address": nodes.address, "workers": workers}


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes do not find the data where this process has them."""
    head = Supply.head

    def elsewhere(supply: Supply, device: str) -> bytes:
        values = json.loads(head(supply, device))
        spec = json.loads(values["spec"])
        spec["data"] = f"/nowhere/{Path(spec['data']).name}"
        return json.dumps({**values, "spec": json.dumps(spec)}).encode()

    monkeypatch.setattr(Supply, "head", elsewhere)


@pytest.mark.parametrize(("name", "workers"), TRIED.items())
def test_two_nodes_that_are_sent_the_data_give_the_bits_of_serial(
    name: str, workers: int, unreadable: None, nodes: Nodes, toy_data: Path, tmp_path: Path
) -> None:
    (case,) = (case for case in CASES if case.name == name)
    changes = {"run": {"rounds": 2}, **case.changes}
    if name == "scaffold":
        changes["evaluate"] = {"with": ["accuracy", "personal", "toy_methods:FederatedProbe"]}
    run(toy_data, tmp_path / "serial", changes)
    run(toy_data, tmp_path / "ray", {**changes, "executor": on(nodes, workers)})
    assert same(tmp_path / "ray", tmp_path / "serial")
    cache = Path(nodes.variables["COTERIE_CACHE"])
    assert cache != default_cache() and list(cache.glob("*/meta.json"))


def test_a_raylet_that_is_killed_changes_no_bit(
    nodes: Nodes, toy_data: Path, tmp_path: Path
) -> None:
    run(toy_data, tmp_path / "serial", STATEFUL)

    def kill_one() -> None:
        metrics = tmp_path / "ray" / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            time.sleep(0.01)
        ray_nodes.kill(nodes.raylet(OTHER))

    killer = threading.Thread(target=kill_one)
    killer.start()
    run(toy_data, tmp_path / "ray", {**STATEFUL, "executor": on(nodes)})
    killer.join()
    assert same(tmp_path / "ray", tmp_path / "serial")


def test_a_cluster_refuses_another_token(
    nodes: Nodes, toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(RunFailed, match=r"executor\.address"):
        run(toy_data, tmp_path / "run", {"executor": on(nodes, 1)})


def test_a_cluster_of_our_own_is_for_this_machine_only_and_ends_with_the_run(
    toy_data: Path, tmp_path: Path
) -> None:
    out, config = tmp_path / "run", tmp_path / "config.toml"
    changes = {**STATEFUL, "run": {"rounds": 300}, "checkpoint": {"every": 2}}
    tables = toy.tables(toy_data, **changes, executor={"kind": "ray", "workers": 2})
    config.write_text("\n".join(f"{name} = {_inline(table)}" for name, table in tables.items()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "coterie", "run", str(config), "--out", str(out)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (out / "checkpoints" / "round_000001").exists():
        time.sleep(0.05)
    pids = [process.pid, *ray_nodes.descendants(process.pid)]
    addresses = ray_nodes.listening(pids)
    folders = {p for p in Path("/tmp").glob("coterie-ray-*") if str(process.pid) in _sessions(p)}
    tokens = [folder / "token" for folder in folders]
    modes = [(stat.S_IMODE(t.stat().st_mode), len(t.read_text())) for t in tokens]
    process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begin < 20.0  # three seconds if nobody else uses the machine
    assert process.returncode == 130, errors
    assert "--resume" in errors.splitlines()[-1]
    assert modes == [(0o600, 64)]
    assert not any(folder.exists() for folder in folders)
    assert {"gcs_server", "raylet"} <= set(addresses.values())
    outside = {a: name for a, name in addresses.items() if not _is_loopback(a)}
    assert not outside
    deadline = time.monotonic() + 5.0
    while any(map(ray_nodes.is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [ray_nodes.name_of(pid) for pid in pids if ray_nodes.is_alive(pid)]


def _sessions(folder: Path) -> str:
    return " ".join(path.name for path in folder.glob("session_*"))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.rpartition(":")[0]).is_loopback


def _inline(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_inline(v)}" for name, v in value.items()) + " }"
    return json.dumps(value)
