"""Clients that never train: who they are, what they measure, that nothing is learned of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie
import toy
from coterie.cli.run import closing
from coterie.core.errors import ConfigError
from coterie.core.task import ClientInfo
from coterie.engine.cohort import draw_unseen
from coterie.experiment.evaluate import evaluate

UNSEEN = {"unseen": 2}
SHORT = {"rounds": 2}
SIMSIAM: dict[str, Any] = {
    "objective": {"name": "simsiam"},
    "evaluate": {"with": ["knn", "personal_knn"], "metric": "knn"},
}


@pytest.fixture(scope="module")
def kept(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> coterie.Result:
    """A run in which two of six clients never train."""
    return toy.run(toy_data, tmp_path_factory.mktemp("unseen") / "run", cohort=UNSEEN)


def test_unseen_clients_are_drawn_by_the_seed_and_said_at_the_start(
    toy_data: Path, tmp_path: Path
) -> None:
    drawn = {
        seed: toy.prepared(toy_data, tmp_path, cohort=UNSEEN, run={"seed": seed})
        for seed in range(4)
    }
    assert len({experiment.unseen for experiment in drawn.values()}) > 1
    for experiment in drawn.values():
        (note,) = (text for text in experiment.notes if "cohort.unseen = 2" in text)
        assert note.endswith(", ".join(experiment.unseen))


def test_unseen_clients_are_named_in_every_file_of_the_run(kept: coterie.Result) -> None:
    assert len(kept.unseen) == 2 and set(kept.unseen) < set(kept.clients)
    described = json.loads((kept.folder / "model.json").read_text())
    assert described["unseen"] == list(kept.unseen)
    listed = json.loads((kept.folder / "partition.json").read_text())["clients"]
    assert [c["name"] for c in listed if c.get("unseen")] == list(kept.unseen)
    assert all(event.unseen == list(kept.unseen) for event in kept.history)
    assert "never trained" in (kept.folder / "report.html").read_text()


def test_unseen_clients_are_never_invited_and_have_no_state(toy_data: Path, tmp_path: Path) -> None:
    result = toy.run(toy_data, tmp_path / "run", method={"name": "moon"}, cohort=UNSEEN)
    unseen = {int(name) for name in result.unseen}
    assert not any(unseen & set(event.cohort) for event in result.history)
    states = {int(path.name) for path in (tmp_path / "run/clients").iterdir()}
    assert states and not unseen & states


def test_unseen_clients_are_measured_apart(kept: coterie.Result) -> None:
    own = {name: kept.per_client[name]["accuracy"] for name in kept.clients}
    unseen = [value for name, value in own.items() if name in kept.unseen]
    trained = [value for name, value in own.items() if name not in kept.unseen]
    assert kept.metrics["unseen_accuracy_mean"] == pytest.approx(np.mean(unseen))
    assert kept.metrics["client_accuracy_mean"] == pytest.approx(np.mean(trained))
    tests = sum(m.sum() for name, m in kept.client_confusion.items() if name not in kept.unseen)
    assert kept.confusion.sum() == tests < 60


def make_sites(count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sites of two classes each; the first ones are the same whatever the count."""
    sites = {}
    for site in range(count):
        draw = np.random.default_rng(site)
        y = np.arange(30 + 5 * site) % 2
        x = draw.normal(size=(len(y), 4)) + y[:, None] + site / 4
        sites[f"site-{site}"] = (x.astype(np.float32), y)
    return sites


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "solo"])
def test_a_run_is_that_of_the_other_clients_alone(name: str, tmp_path: Path) -> None:
    """All but the metrics of the unseen client: weights, states, and every other metric."""
    infos = [ClientInfo(site, f"site-{site}", 30, 5) for site in range(4)]
    seed = next(seed for seed in range(99) if draw_unseen(infos, 1, seed) == (3,))
    slow = ["federated_probe"] if name == "fedavg" else []
    evaluators = ["accuracy", "personal", "knn", *slow]
    options: dict[str, Any] = {"method": name, "evaluate": evaluators, "rounds": 2, "seed": seed}
    options |= {"executor": "serial", "local": {"batch_size": 8}, "progress": False}
    kept = coterie.fit(make_sites(4), out=tmp_path / "kept", cohort={"unseen": 1}, **options)
    alone = coterie.fit(make_sites(3), out=tmp_path / "alone", **options)
    assert kept.unseen == ("site-3",)
    for one, other in zip(kept.history, alone.history, strict=True):
        assert (one.digest, one.states) == (other.digest, other.states)
        apart = {name for name in one.metrics if name.startswith("unseen_")}
        assert apart == one.metrics.keys() - other.metrics.keys()
        # the server tests in another order, which rounds its loss otherwise
        assert {name: one.metrics[name] for name in other.metrics} == pytest.approx(other.metrics)
        assert other.clients.items() <= one.clients.items()
    assert (kept.confusion == alone.confusion).all()


@pytest.mark.parametrize("standardise", ["federated", "site", "none"])
def test_columns_of_a_table_are_those_of_the_other_sites_alone(
    standardise: str, tmp_path: Path
) -> None:
    """Means, values of a category and the filling of gaps; the unseen site differs in all."""
    infos = [ClientInfo(site, f"site-{site}", 30, 5) for site in range(4)]
    seed = next(seed for seed in range(99) if draw_unseen(infos, 1, seed) == (3,))
    frames = []
    for site, (x, y) in make_sites(4).items():
        frame = pd.DataFrame(x, columns=list("abcd")).assign(hospital=site, ill=y)
        frame.loc[0, "a"] = np.nan
        frames.append(frame.assign(ward=np.where(y, "east", site if site == "site-3" else "west")))
    options: dict[str, Any] = {"site": "hospital", "label": "ill", "evaluate": ["personal"]}
    options |= {"data": {"standardise": standardise}, "seed": seed, "rounds": 2}
    options |= {"executor": "serial", "local": {"batch_size": 8}, "progress": False}
    everyone = pd.concat(frames, ignore_index=True)
    kept = coterie.fit(everyone, out=tmp_path / "kept", cohort={"unseen": 1}, **options)
    others = everyone[everyone["hospital"] != "site-3"]
    alone = coterie.fit(others, out=tmp_path / "alone", **options)
    assert kept.unseen == ("site-3",) and "unseen_accuracy_mean" in kept.metrics
    for one, other in zip(kept.history, alone.history, strict=True):
        assert (one.digest, one.states) == (other.digest, other.states)
        assert other.clients.items() <= one.clients.items()
    client = "site-0" if standardise == "site" else None
    assert torch.equal(kept.prepare(others, client), alone.prepare(others, client))


@pytest.mark.parametrize("name", ["fedavg", "la_ssfl", "per_ssfl"])
def test_every_executor_measures_the_same_on_unseen_clients(
    name: str, toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"method": {"name": name}, "cohort": UNSEEN, "run": SHORT}
    changes |= {} if name == "fedavg" else SIMSIAM
    for kind in ("serial", "processes"):
        executor = {"kind": kind, "workers": 2}
        toy.run(toy_data, tmp_path / kind, executor=executor, **changes)
    assert toy.trace(tmp_path / "serial") == toy.trace(tmp_path / "processes")
    assert toy.outputs(tmp_path / "serial") == toy.outputs(tmp_path / "processes")


def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    kept: coterie.Result, toy_data: Path, tmp_path: Path
) -> None:
    stop = toy.StopAfter(2, toy.Killed)
    with pytest.raises(toy.Killed):
        toy.run(toy_data, tmp_path / "run", cohort=UNSEEN, recorders=[stop])
    toy.run(toy_data, tmp_path / "run", cohort=UNSEEN, resume=True)
    assert toy.trace(tmp_path / "run") == toy.trace(kept.folder)
    assert toy.outputs(tmp_path / "run") == toy.outputs(kept.folder)


@pytest.mark.parametrize("name", ["la_ssfl", "maml_ssfl"])
def test_a_personalised_method_adapts_on_unseen_clients(
    name: str, toy_data: Path, tmp_path: Path
) -> None:
    method = {"name": name}
    result = toy.run(toy_data, tmp_path / "run", method=method, cohort=UNSEEN, run=SHORT, **SIMSIAM)
    shared = result.model().state_dict()
    for client in result.unseen:
        own = result.personal(client).state_dict()
        assert any(not torch.equal(own[name], shared[name]) for name in shared)
    assert {"unseen_knn_mean", "unseen_knn_bank"} <= result.metrics.keys()


def test_a_finished_run_is_measured_again_to_the_same_values(
    kept: coterie.Result,
) -> None:
    again = evaluate(kept.folder)
    assert again == {name: kept.metrics[name] for name in again}
    assert "unseen_accuracy_mean" in again


def test_statistics_that_stay_on_clients_are_taken_from_the_unseen_clients_own_data(
    toy_data: Path, tmp_path: Path
) -> None:
    net = {"norm": "bn", "bn_buffers": "local"}
    result = toy.run(toy_data, tmp_path / "run", net=net, cohort=UNSEEN, run=SHORT)
    for client in result.unseen:
        own = result.personal(client).state_dict()
        means = [tensor for name, tensor in own.items() if name.endswith("running_mean")]
        assert means and all(mean.abs().max() > 0 for mean in means)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort": {"unseen": 6}}, r"cohort\.unseen = 6 leaves none of 6 clients .* 5 or fewer"),
        (
            {"cohort": {"unseen": 1}, "method": {"name": "centralized"}},
            r"cohort\.unseen = 1: method\.name = 'centralized'",
        ),
        (
            {"cohort": {"unseen": 1}, "evaluate": {"with": ["accuracy"]}},
            r"cohort\.unseen = 1 needs an evaluator on clients.*'personal'",
        ),
        ({"cohort": {"unseen": 4, "min_clients": 3}}, r"min_clients = 3, .* 2 of 2 clients"),
        ({"cohort": {"unseen": -1}}, r"cohort\.unseen"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    changes: dict[str, Any], message: str, toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        toy.prepared(toy_data, tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_the_closing_table_names_the_worst_the_best_and_the_unseen_clients(
    kept: coterie.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    closing(kept)
    shown = capsys.readouterr().out
    values = {name: own["accuracy"] for name, own in kept.per_client.items()}
    worst = min(values, key=lambda name: values[name])
    mark = ", unseen" if worst in kept.unseen else ""
    name = f"client {worst}" if worst.isdecimal() else worst
    assert f"{values[worst]:.4f} ({name}{mark})" in shown
    mean = kept.metrics["unseen_accuracy_mean"]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert f"unseen_accuracy_mean {mean:.4f}" in lines
    assert f"unseen clients {', '.join(kept.unseen)}" in lines
    assert "worst client's accuracy" in shown and "best client's accuracy" in shown
