"""MFCL's stages in whole runs: what is frozen when, who is lost where, what lies on the disk."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import same
from modular import SENSE, Modular, pairs_of

import coterie
import toy
from coterie.cli.main import app
from coterie.core.errors import ConfigError, RunFailed
from coterie.experiment.config import load
from coterie.experiment.tables import CONFIGS, parse_overrides, shipped
from coterie.methods.mfcl import MFCL
from coterie.nets.norm import batch_norm_buffers

MINE = [name for name in shipped() if name.endswith("/mfcl")]


def digits(**changes: Any) -> dict[str, dict[str, Any]]:
    """A small run on the digits."""
    tables: dict[str, dict[str, Any]] = {
        "run": {"rounds": 3, "seed": 1},
        "data": {"name": "digits", "limit": 200, "augment": "resized-crop"},
        "partition": {"kind": "iid", "clients": 5},
        "net": {"backbone": "mlp", "projection": 8},
        "objective": {"name": "simclr", "hidden": 16},
        "method": {"name": "mfcl", "share_representations": True, "sensor_width": 4},
        "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 32},
        "executor": {"kind": "serial"},
        "evaluate": {"every": 0, "with": []},
        "checkpoint": {"every": 1, "keep": 2},
    }
    tables["method"] |= {"sense_rounds": 2, "server_batch": 64, "server_warmup": 1}
    for name, change in changes.items():
        tables[name] = {**tables[name], **change}
    return tables


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_stages_are_sense_upload_contrast() -> None:
    stages = MFCL(sense_rounds=15, drop=0.3, quorum=4).stages(400)
    assert [(s.name, s.rounds, s.cohort, s.drop, s.quorum) for s in stages] == [
        ("sense", 15, "sample", 0.0, 1),
        ("upload", 1, "all", 0.3, 4),
        ("contrast", 400, "none", 0.0, 1),
    ]
    again = MFCL(sense_rounds=2, refresh="epoch").stages(3)
    assert [s.name for s in again] == ["sense", *["upload", "contrast"] * 3]
    assert [s.required for s in again if s.name == "upload"] == [True, False, False]


@pytest.mark.parametrize("norm", ["pn", "bn"])
def test_the_sensor_is_frozen_once_it_is_trained(tmp_path: Path, norm: str) -> None:
    fed = Modular(tmp_path / "run", sensor_norm=norm)
    fed.run()
    servers = fed.servers()
    assert len(servers) == SENSE + 1 + fed.config.run.rounds
    assert not same(servers[0]["sensor"], servers[SENSE - 1]["sensor"])
    for later in servers[SENSE:]:
        assert same(later["sensor"], servers[SENSE - 1]["sensor"])
    for early in servers[: SENSE + 1]:
        assert same(early["discriminator"], servers[0]["discriminator"])
    assert not same(servers[-1]["discriminator"], servers[0]["discriminator"])
    assert servers[SENSE].blobs and not servers[-1].blobs


def test_averaged_statistics_are_sent_and_local_ones_stay(tmp_path: Path) -> None:
    for policy in ("average", "local"):
        tables = {"net": {"bn_buffers": policy}}
        fed = Modular(tmp_path / policy, tables=tables, sensor_norm="bn", precision="fp32")
        server, place = fed.start(), fed.at("sense")
        buffers = batch_norm_buffers(fed.nets["sensor"])
        answers = {client: fed.answer(client, place, server) for client in range(3)}
        for up, _ in answers.values():
            assert buffers.isdisjoint(up["sensor"]) == (policy == "local")
        server, _ = fed.after(place, server, {c: up for c, (up, _) in answers.items()})
        place = fed.at("upload")
        own = answers[0][1].keeps
        assert bool(own) == (policy == "local")
        first = pairs_of(fed.answer(0, place, server, own)[0])
        other = pairs_of(fed.answer(0, place, server, answers[1][1].keeps)[0])
        assert torch.equal(first, other) == (policy == "average")  # whose statistics count


def test_local_statistics_are_the_sensors_alone(tmp_path: Path) -> None:
    tables = {"net": {"bn_buffers": "local", "norm": "bn"}}
    fed = Modular(tmp_path, tables=tables, sensor_norm="bn")
    server, _ = fed.after(fed.at("contrast"), fed.uploaded())
    weights = fed.method.model(server) or {}
    statistics = batch_norm_buffers(fed.nets["model"])
    theirs = {name for name in statistics if name.startswith("backbone.sensor.")}
    assert theirs and statistics - theirs == statistics & weights.keys()
    net = fed.nets.frozen_on_server("model", weights)
    x = fed.images(0)
    assert not torch.allclose(net(x).h[:2], net(x[:2]).h)  # the sensor looks at the batch ...
    top = net.net.backbone.discriminator
    assert isinstance(top, torch.nn.Module)
    z = torch.rand(6, *fed.nets["sensor"].code)  # type: ignore[attr-defined]
    assert torch.allclose(top(z)[:2], top(z[:2]), atol=1e-6)  # ... the discriminator does not
    kept = fed.answer(0, fed.at("sense"), fed.start())[1].keeps
    assert kept["model:local"].keys() == theirs


def test_clients_are_lost_in_the_upload_alone(tmp_path: Path) -> None:
    coterie.run(digits(method={"drop": 0.5, "refresh": "epoch"}), out=tmp_path / "run")
    lost = [(e["stage"], sorted(e["lost"])) for e in events(tmp_path / "run")]
    uploads = [who for stage, who in lost if stage == "upload"]
    assert len(uploads) == 3 and len(uploads[0]) == 2  # half of five, rounded down
    assert uploads[0] == uploads[1] == uploads[2]
    assert all(not who for stage, who in lost if stage != "upload")


def test_an_upload_without_a_quorum_ends_the_run_and_can_be_tried_again(tmp_path: Path) -> None:
    tables = digits(method={"quorum": 3}, run={"seed": 0}) | {"cohort": {"drop_before": 0.3}}
    for resume in (False, True):
        with pytest.raises(RunFailed, match=r"round 3 \(upload\) got 2 of the 3 answers"):
            coterie.run(tables, out=tmp_path / "run", resume=resume)
        assert [e["stage"] for e in events(tmp_path / "run")] == ["sense", "sense"]
    with pytest.raises(ConfigError, match="needs answers of 5 clients and asks 3"):
        coterie.run(digits(method={"quorum": 5, "drop": 0.4}), out=tmp_path / "other")


def test_a_later_upload_without_a_quorum_is_passed_over(tmp_path: Path) -> None:
    tables = digits(method={"quorum": 4, "refresh": "epoch"}, run={"rounds": 4})
    coterie.run(tables | {"cohort": {"drop_before": 0.3}}, out=tmp_path / "run")
    found = events(tmp_path / "run")
    uploads = [e["skipped"] for e in found if e["stage"] == "upload"]
    assert uploads == [False, False, False, True]
    assert not any(e["skipped"] for e in found if e["stage"] == "contrast")


def test_bytes_of_representations_count(tmp_path: Path) -> None:
    coterie.run(digits(), out=tmp_path / "run")
    found = events(tmp_path / "run")
    (upload,) = (e for e in found if e["stage"] == "upload")
    assert upload["bytes_up"] == 200 * 2 * 4 * 8 * 8 * 2 == upload["metrics"]["server_bytes"]
    assert all(e["bytes_up"] == e["bytes_down"] == 0 for e in found if e["stage"] == "contrast")
    labelled = digits(method={"share_labels": True, "precision": "fp32"})
    coterie.run(labelled, out=tmp_path / "labelled")
    (upload,) = (e for e in events(tmp_path / "labelled") if e["stage"] == "upload")
    assert upload["bytes_up"] == 200 * (2 * 4 * 8 * 8 * 4 + 8)


class Disk:
    """A recorder that notes how many uploads lie on the disk after every round."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0

    def __call__(self, event: Any) -> None:
        files = [*self.folder.glob("blobs/*"), *self.folder.glob("spool/**/pairs")]
        self.most = max(self.most, len(files))


@pytest.mark.parametrize(("every", "keep"), [(0, 2), (1, 1), (2, 2)])
def test_uploads_anew_do_not_pile_up_on_the_disk(tmp_path: Path, every: int, keep: int) -> None:
    tables = digits(
        method={"refresh": "epoch"}, run={"rounds": 6}, checkpoint={"every": every, "keep": keep}
    )
    disk = Disk(tmp_path / "run")
    coterie.run(tables, out=tmp_path / "run", recorders=[disk])
    kept = keep if every else 0
    # clients x (checkpoints with their second copies, the last and the new one)
    assert 5 <= disk.most <= 5 * (2 * kept + 2)
    pairs = {e["digest"] for e in events(tmp_path / "run") if e["stage"] == "upload"}
    assert len(pairs) == 6


def test_an_interrupt_between_uploads_finds_its_files(tmp_path: Path) -> None:
    tables = digits(method={"refresh": "epoch"}, checkpoint={"every": 0})
    coterie.run(tables, out=tmp_path / "whole")
    for last in (3, 4, 5):
        stop = [toy.StopAfter(last, KeyboardInterrupt)]
        with pytest.raises(BaseException, match="interrupted"):
            coterie.run(tables, out=tmp_path / "run", resume=True, recorders=stop)
        found = toy.trace(tmp_path / "run")
        assert found == toy.trace(tmp_path / "whole")[: len(found)]
    coterie.run(tables, out=tmp_path / "run", resume=True)
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "whole")
    assert toy.outputs(tmp_path / "run") == toy.outputs(tmp_path / "whole")


@pytest.mark.parametrize("name", MINE)
def test_nothing_runs_until_sharing_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError, match=r"set method\.share_representations=true") as raised:
        app(["run", name, "--dry-run"], standalone_mode=False)
    assert raised.value.exit_code == 2
    first = (CONFIGS / f"{name}.toml").read_text().splitlines()[0]
    words = first.partition("(")[0].split()
    assert words[:4] == ["#", "coterie", "run", name]
    method = load(name, parse_overrides(words[4:])).method
    assert isinstance(method, MFCL) and method.share_representations and not method.share_labels


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"joint": "projection"}, "needs method.share_labels = true"),
        ({"refresh": "epoch", "views_cached": 2}, "is for method.refresh = 'once'"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MFCL(**fields)


def test_supervised_objectives_are_refused() -> None:
    with pytest.raises(ConfigError, match="simclr or simsiam or byol"):
        coterie.run(digits() | {"objective": {"name": "supervised"}}, out="nowhere")


def test_probes_read_the_composition_on_both_layers(tmp_path: Path) -> None:
    both = ["linear_probe", "projection_probe", "knn", "projection_knn", "federated_probe"]
    tables = digits(
        evaluate={"with": [*both, "accuracy"]},
        method={"joint": "projection", "share_labels": True},
    ) | {"record": {"embedding": 50}}
    result = coterie.run(tables, out=tmp_path / "run")
    metrics = {"probe", "projection_probe", "knn", "projection_knn", "federated_probe", "accuracy"}
    assert metrics <= result.metrics.keys()
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(result.encoder()(x), result.model()(x).h)
    held = np.load(tmp_path / "run" / "embedding.npz")
    assert held["features"].shape == (50, 200) and held["projection"].shape == (50, 8)
    assert set(np.unique(held["client"])) <= set(range(5))
