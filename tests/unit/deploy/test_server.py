"""A server and clients with a link between them have the bits of a run in one process."""

import json
from pathlib import Path
from typing import Any

import fleet
import pytest
from fleet import Fleet

import coterie
from coterie.core.errors import ConfigError, RunFailed
from coterie.deploy.client import Consent
from coterie.engine.record import Event, NoteEvent, RoundEvent
from coterie.kit.accounting import epsilon

SMALL: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "moon": {"method": {"name": "moon", "mu": 1.0}},
    "scaffold": {"method": {"name": "scaffold"}},
    "fedproc": {"method": {"name": "fedproc"}},
    "fedssc": {"method": {"name": "fedssc"}},
}
_VIEWS: dict[str, Any] = {
    "data": {"augment": "resized-crop"},
    "evaluate": {"with": ["personal_knn"], "metric": "client_knn_mean"},
}
VIEWS: dict[str, dict[str, Any]] = {
    "byol": {"objective": {"name": "byol", "hidden": 16}},
    "simsiam-bn": {
        "objective": {"name": "simsiam", "hidden": 16, "bottleneck": 4},
        "net": {"backbone": "mlp", "projection": 8, "bn_buffers": "local"},
    },
    "mfcl": {
        "objective": {"name": "simclr", "hidden": 16},
        "method": {
            "name": "mfcl",
            "share_representations": True,
            **{"sense_rounds": 1, "sensor_width": 4, "server_batch": 48, "server_warmup": 1},
        },
    },
}


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    return fleet.write_sites(tmp_path / "sites")


def scores(folder: Path) -> list[dict[str, float]]:
    """What clients measured, by round."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines]


def check_equal(tmp_path: Path, root: Path, changes: dict[str, Any]) -> Fleet:
    tables = fleet.tables(root, **changes)
    fleet.simulate(root, tmp_path / "one", tables)
    clients = Fleet(root, tmp_path)
    clients.run(tmp_path / "many", tables)
    clients.join()
    assert fleet.digests(tmp_path / "many") == fleet.digests(tmp_path / "one")
    assert scores(tmp_path / "many") == scores(tmp_path / "one")
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("one", "many")]
    assert weights[0] == weights[1]
    return clients


@pytest.mark.parametrize("name", SMALL)
def test_a_deployed_run_has_the_bits_of_a_simulated_one(
    name: str, tmp_path: Path, sites: Path
) -> None:
    check_equal(tmp_path, sites, {"run": {"rounds": 2, "seed": 5}, **SMALL[name]})


def test_answers_wake_a_server_that_looks_once_an_hour(tmp_path: Path, sites: Path) -> None:
    clients = Fleet(sites, tmp_path)
    clients.run(tmp_path / "many", fleet.tables(sites, run={"rounds": 2}), poll=3600.0)
    clients.join()


@pytest.mark.parametrize("name", VIEWS)
def test_runs_on_images_without_labels_too(name: str, tmp_path: Path) -> None:
    root = fleet.write_sites(tmp_path / "sites", images=True)
    clients = check_equal(
        tmp_path, root, {"run": {"rounds": 2, "seed": 5}, **_VIEWS, **VIEWS[name]}
    )
    if name == "simsiam-bn":  # statistics stay on clients, and so do the models that have them
        (run,) = (clients.folder / "site-amiens").glob("*/model.json")
        assert not (tmp_path / "many" / "personal").exists()
        assert coterie.load(run.parent).clients == ("amiens",)


def test_a_federated_evaluator_is_played_over_the_link(tmp_path: Path, sites: Path) -> None:
    changes = {
        "run": {"rounds": 1, "seed": 5},
        "evaluate": {"with": ["personal", "federated_probe"], "metric": "client_accuracy_mean"},
    }
    check_equal(tmp_path, sites, changes)


class Notes:
    """A recorder that keeps notes, and who was lost."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.lost: list[dict[str, str]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, NoteEvent):
            self.texts.append(event.text)
        if isinstance(event, RoundEvent):
            self.lost.append({**event.lost, **event.rejected})


def test_evaluators_of_the_server_are_left_out_with_a_line(tmp_path: Path, sites: Path) -> None:
    tables = fleet.tables(
        sites, run={"rounds": 1, "seed": 5}, evaluate={"with": ["accuracy", "personal"]}
    )
    clients, notes = Fleet(sites, tmp_path), Notes()
    result = clients.run(tmp_path / "run", tables, recorders=[notes])
    assert "not measured, as the server has no test samples: accuracy" in notes.texts
    assert any(text.startswith("leaves each client: sizes") for text in notes.texts)
    assert any("sizes: its numbers" in line for line in clients.said["amiens"])
    assert result.config["evaluate"]["metric"] == "client_accuracy_mean"


def test_a_deployed_run_may_be_private(tmp_path: Path, sites: Path) -> None:
    tables = fleet.tables(
        sites,
        run={"rounds": 2, "seed": 5},
        evaluate={"with": ["accuracy"]},
        privacy={"clip": 1.0, "noise": 2.0},
    )
    clients, notes = Fleet(sites, tmp_path), Notes()
    result = clients.run(tmp_path / "run", tables, recorders=[notes])
    clients.join()
    assert result.metrics["epsilon"] == epsilon(2.0, 1.0, 2, 1e-5)
    assert any(text.startswith("differential privacy for clients") for text in notes.texts)


def test_the_server_may_have_test_samples_of_its_own(tmp_path: Path, sites: Path) -> None:
    tables = fleet.tables(
        sites, run={"rounds": 1, "seed": 5}, evaluate={"with": ["accuracy", "personal"]}
    )
    clients = Fleet(sites, tmp_path)
    for name in clients.names:
        clients.start(name)
    whole = {**tables, "data": {"name": "arrays", "root": str(tmp_path / "whole.npz")}}
    result = fleet.serve(clients, whole, tmp_path / "run")
    assert result.history[-1].metrics["accuracy"] > 0.3


def test_a_client_that_denies_a_group_ends_its_part_and_not_the_run(
    tmp_path: Path, sites: Path
) -> None:
    tables = fleet.tables(sites, run={"rounds": 1, "seed": 5}, **SMALL["fedproc"])
    clients, notes = Fleet(sites, tmp_path), Notes()
    clients.start("amiens")
    clients.start("berlin", Consent(deny=("class_counts",)))
    clients.start("cadiz")
    clients.run(tmp_path / "run", tables, start=False, recorders=[notes])
    clients.join()
    assert "its operator denies class_counts" in clients.ended["berlin"]
    assert any("'berlin' takes no part: its operator denies" in text for text in notes.texts)
    known = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert [info["name"] for info in known["clients"]] == ["amiens", "cadiz"]


def test_clients_with_other_samples_are_refused_with_the_reason(
    tmp_path: Path, sites: Path
) -> None:
    images = fleet.write_sites(tmp_path / "other", images=True)
    (images / "cadiz.npz").replace(sites / "cadiz.npz")
    clients = Fleet(sites, tmp_path)
    clients.run(tmp_path / "run", fleet.tables(sites, run={"rounds": 1, "seed": 5}))
    clients.join()
    assert "its samples are image uint8 1 x 8 x 8" in clients.ended["cadiz"]
    assert clients.ended["amiens"] == "the run is finished"


def test_too_few_clients_end_with_one_line(tmp_path: Path, sites: Path) -> None:
    clients = Fleet(sites, tmp_path)
    with pytest.raises(RunFailed, match="0 clients joined within"):
        clients.run(tmp_path / "run", fleet.tables(sites), start=False, wait=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"limit": 20}}, "data.limit = 20"),
        ({"method": {"name": "centralized"}}, "pools the data of all sites"),
        ({"record": {"embedding": 10}}, "record.embedding"),
    ],
)
def test_what_only_simulations_do_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, sites: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        Fleet(sites, tmp_path).run(tmp_path / "run", fleet.tables(sites, **changes), start=False)
    assert not (tmp_path / "run").exists()
