"""The executor over Ray, as far as it needs no cluster: addresses, tokens, shares, actors."""

import inspect
import json
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import toy
from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.errors import ConfigError, DataError, RunFailed
from coterie.core.settings import ExecutorSettings
from coterie.core.task import METHOD, Attempt, Round, Task
from coterie.data import copies
from coterie.data.datasets import default_cache
from coterie.engine.site import Site
from coterie.executors import wire
from coterie.executors.cluster import connect, executor
from coterie.executors.cluster.actor import SiteActor
from coterie.nets import precision

ROUND = Round(0, 1, "train", 0, 1, toy.CLIENTS, seed=5)


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_an_address_without_a_token_is_refused(no_token: None) -> None:
    with pytest.raises(ConfigError, match=r"without a token.*executor\.insecure = true"):
        connect.connect("127.0.0.1:1", insecure=False, cpus=1, gpus=0)


def test_an_address_where_nobody_answers_is_refused_at_once(no_token: None) -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        connect.connect("127.0.0.1:1", insecure=True, cpus=1, gpus=0)


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:", ":6379", "host:x"])
def test_what_is_no_address_is_refused(address: str, no_token: None) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        connect.connect(address, insecure=True, cpus=1, gpus=0)


def test_a_token_is_found_where_ray_looks_for_it(
    no_token: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert connect.find_token() is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("at home\n")
    assert connect.find_token() == "at home"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(connect.write_token(tmp_path)))
    assert connect.find_token() == (tmp_path / "token").read_text()
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("RAY_AUTH_TOKEN", "given")
    assert connect.find_token() == "given"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert connect.find_token() is None


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[ray\]'"):
        connect.check_installed()


def test_ray_replaces_loopback_addresses_where_as_given_expects_it() -> None:
    """If this fails with a new version of Ray, `as_given` has to follow it."""
    from ray._private import services, worker

    outer = services.resolve_ip_for_localhost
    assert "services.resolve_ip_for_localhost(_node_ip_address)" in inspect.getsource(worker.init)
    assert "resolve_ip_for_localhost(host)" in inspect.getsource(
        services.canonicalize_bootstrap_address
    )
    with connect.as_given():
        assert services.canonicalize_bootstrap_address("127.0.0.1:6379") == "127.0.0.1:6379"
    assert services.resolve_ip_for_localhost is outer


def test_ray_leaves_our_handler_of_sigterm_while_it_connects() -> None:
    from ray._private import utils, worker

    assert "ray._private.utils.set_sigterm_handler(" in inspect.getsource(worker.init)
    before, rays = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    with connect.as_given():
        utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
        assert signal.getsignal(signal.SIGTERM) is before
    assert utils.set_sigterm_handler is rays


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "processes", "address": "host:1"}, r"executor\.address is for"),
        ({"kind": "serial", "insecure": True}, r"executor\.insecure is for"),
        ({"kind": "ray", "devices": ("cuda:1",)}, "Ray chooses the GPU"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ExecutorSettings(**settings)


@pytest.mark.parametrize(
    ("asked", "devices", "resources", "count", "share"),
    [
        (0, ["cpu"], {"CPU": 6.0}, 6, None),
        (3, ["cpu"], {"CPU": 6.0, "GPU": 2.0}, 3, None),
        (0, ["cuda"], {"CPU": 6.0, "GPU": 2.0}, 2, 1.0),
        (8, ["cuda"], {"CPU": 9.0, "GPU": 2.0}, 8, 0.25),
        (3, ["cuda"], {"CPU": 9.0, "GPU": 2.0}, 3, 0.5),
        (4, ["cuda", "cpu"], {"CPU": 9.0, "GPU": 1.0}, 4, 0.5),
    ],
)
def test_actors_share_cores_and_gpus(
    asked: int, devices: Any, resources: Any, count: int, share: float | None
) -> None:
    assert executor.choose_workers(asked, devices, resources) == count
    needs = executor.choose_needs(count, devices, resources)
    assert needs[0].get("GPU") == share
    assert all(need["CPU"] == 1.0 for need in needs)
    if len(devices) == 1:
        assert executor.count_places(resources, needs[0]) >= count
    options = executor.actor_options(needs[0])
    assert (options["max_restarts"], options["max_task_retries"]) == (0, 0)


def test_a_cluster_without_what_is_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="offer 2 CPUs"):
        executor.choose_workers(3, ["cpu"], {"CPU": 2.0})
    with pytest.raises(ConfigError, match="offers a GPU"):
        executor.choose_workers(1, ["cuda"], {"CPU": 2.0})


def test_a_copy_of_the_data_is_found_by_its_fingerprint_or_written(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = toy.prepared(toy_data, tmp_path / "run").dataset
    elsewhere = Path("/nowhere") / dataset.path.name
    assert copies.find_copy(dataset.path, dataset.fingerprint) == dataset.path
    assert copies.find_copy(elsewhere, dataset.fingerprint) == dataset.path  # it is cached
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "node"))
    assert copies.find_copy(elsewhere, dataset.fingerprint) is None
    assert copies.find_copy(dataset.path, "0" * 64) is None
    files = copies.read_files(dataset.path)
    written = copies.write_copy(files, dataset.fingerprint)
    assert written.parent == default_cache() and written.name == dataset.path.name
    assert copies.find_copy(elsewhere, dataset.fingerprint) == written
    with pytest.raises(DataError, match="damaged"):
        copies.write_copy(files, "0" * 64)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray without a cluster: a reference is the object itself."""
    context = SimpleNamespace(get_node_id=lambda: "node")
    fake = SimpleNamespace(get=lambda ref: ref, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", fake)


def test_an_actor_answers_as_a_site_in_this_process_and_writes_nothing(
    direct: None, toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = toy.prepared(
        toy_data, tmp_path / "run", method={"name": "toy_methods:TwoModels"}, net={"norm": "bn"}
    )
    spec, shares, dataset = experiment.spec, experiment.partition, experiment.dataset
    packed = {name: torch.from_numpy(array) for name, array in shares.pack().items()}
    partition = [codec.encode(Bundle({"partition": packed}))]
    head = {"fingerprint": dataset.fingerprint, "names": list(shares.names)}
    moved = replace(spec, data="/nowhere/else", folder="/nowhere")
    head_bytes = json.dumps({**head, "spec": moved.to_json()}).encode()
    stage, server = experiment.parts.stages(METHOD)[0], experiment.parts.start()
    assert stage.broadcast is not None
    task = Task("update", 1, ROUND, stage.broadcast(server, ROUND), attempt=Attempt())
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "node"))
    actor = SiteActor()
    assert json.loads(actor.open(head_bytes, partition, []))["kind"] == "missing"
    ready = json.loads(actor.open(head_bytes, partition, [copies.read_files(dataset.path)]))
    assert (ready["kind"], ready["node"]) == ("ready", "node")
    answers = []
    for _ in range(2):  # the second with the broadcast of the first
        text = json.dumps(wire.task_head(task), default=asdict).encode()
        answers.append(actor.run(text, b"", b"", [codec.pack(task.down)], 3))
    reply_head, up, kept = answers[0]
    assert answers[1][1:] == (up, kept)
    expected = Site(spec, shares).run(task)
    reply = wire.read_reply(json.loads(reply_head), codec.encode(Bundle()))
    assert reply.error is None and reply.state == expected.state
    assert codec.unpack(up, tmp_path).digest() == expected.up.digest()
    assert codec.decode(kept).digest() == expected.state
    assert not Path("/nowhere").exists()
    actor._settings.close()


def test_a_node_that_dies_of_bfloat16_is_not_used(
    direct: None, toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = toy.prepared(toy_data, tmp_path / "run")
    spec = replace(experiment.spec, net=replace(experiment.spec.net, precision="bf16"))
    monkeypatch.setattr(precision, "try_bf16", lambda: "was killed by SIGILL")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    head = {"fingerprint": experiment.dataset.fingerprint, "names": [], "spec": spec.to_json()}
    actor = SiteActor()
    answer = json.loads(actor.open(json.dumps(head).encode(), [], []))
    assert answer["kind"] == "failed" and "was killed by SIGILL" in answer["reason"]
    actor._settings.close()


def test_other_kernels_on_a_node_are_noted_once_and_other_versions_are_refused() -> None:
    cluster, notes = executor.Cluster.__new__(executor.Cluster), list[str]()
    cluster._environment = {"torch": "2.9", "kernels": "avx2", "kernel library": "0123"}
    cluster._noted, cluster._note = set(), notes.append
    for _ in range(2):
        cluster._compare({"torch": "2.9", "kernels": "avx2", "kernel library": "4567"})
    (note,) = notes
    assert "kernel library 4567, this process kernel library 0123: the bits may differ" in note
    with pytest.raises(RunFailed, match=r"a node has torch 2\.8, this process torch 2\.9"):
        cluster._compare({"torch": "2.8"})


def test_what_cannot_be_opened_is_answered_with_the_reason(direct: None) -> None:
    actor = SiteActor()
    answer = json.loads(actor.open(json.dumps({"spec": "{}"}).encode(), [], []))
    assert answer["kind"] == "failed" and "KeyError" in answer["reason"]
    actor._settings.close()
