"""Orchestra: its losses and both clusterings by hand, its memory, what is sent, who remembers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import assert_near, same
from orchestra_by_hand import (
    EMA,
    FIELDS,
    SERVER,
    WIDTH,
    T,
    Trained,
    clouds,
    filled,
    local_training,
    naive_cluster,
    naive_consistency,
    orchestra,
)
from torch import Tensor, nn
from two_views import ROUGH, SIZES, TwoViews, assert_refused, layers

from coterie.core.bundle import Bundle, Payload, Tensors
from coterie.core.errors import ConfigError
from coterie.core.task import METHOD, Round
from coterie.experiment.config import load
from coterie.experiment.prepare import prepare
from coterie.kit.clustering import Descent
from coterie.methods.orchestra import consistency, push

MEMORY = FIELDS["memory"]


def first_round(fed: TwoViews) -> Round:
    return fed.place(0, 1, "cluster")


def place_of(fed: TwoViews, step: int) -> Round:
    return fed.place(step, before=1)


def later(fed: TwoViews, seed: int = 0) -> Payload:
    """What is sent in a later round: networks that have moved, the target elsewhere."""
    model, other = fed.moved(seed=seed), fed.moved(seed=seed + 1)
    target = {name: other[name] for name in fed.nets.weights("target")}
    return Bundle({"model": model, "target": target, "centroids": {"c": clouds(3, 10)}})


def memory_of(seed: int = 5) -> Bundle:
    return Bundle({"memory": {"z": clouds(seed, MEMORY)}})


# ---- the local loss, the target, the memory


def test_the_consistency_is_that_by_hand_and_its_goal_is_a_constant() -> None:
    t, o, c = (clouds(k, n).double().requires_grad_() for k, n in ((0, 7), (1, 7), (2, 5)))
    found, expected = consistency(t, o, c.detach(), T), naive_consistency(t.detach(), o, c.detach())
    torch.testing.assert_close(found, expected)
    slopes = torch.autograd.grad(found, (t, o), allow_unused=True)
    assert slopes[0] is None
    torch.testing.assert_close(slopes[1], torch.autograd.grad(expected, o)[0])


def test_the_memory_is_first_in_first_out() -> None:
    memory = torch.arange(6.0)[:, None]
    assert push(memory, torch.tensor([[6.0], [7.0]]))[:, 0].tolist() == [2, 3, 4, 5, 6, 7]
    assert push(memory, 10.0 + torch.arange(8.0)[:, None])[:, 0].tolist() == [
        12,
        13,
        14,
        15,
        16,
        17,
    ]
    assert memory[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def by_hand(fed: TwoViews, client: int, place: Round, down: Payload, memory: Tensor) -> Trained:
    centroids = down.get("centroids").get("c")
    return local_training(fed, client, place, down["model"], down["target"], memory, centroids)


@pytest.mark.parametrize(
    "local",
    [{}, {"accumulate": 2, "epochs": 2}, {"batch_size": 6, "steps": 3}, {"batch_size": 64}],
    ids=str,
)
def test_local_training_is_that_by_hand(local: dict[str, Any], tmp_path: Path) -> None:
    """The target follows before the first batch of a step, not at every batch."""
    fed = orchestra(tmp_path, {"local": local})
    down, state, place = later(fed), memory_of(), place_of(fed, 3)
    expected = by_hand(fed, 2, place, down, state["memory"]["z"])
    done = fed.update(2, place, down, state)
    assert_near(done.up["model"], expected.online, atol=1e-5)
    assert_near(done.up["target"], expected.target, atol=1e-5)
    assert done.state is not None
    np.testing.assert_allclose(done.state["memory"]["z"], expected.memory, atol=1e-5)
    assert done.metrics["loss_cluster"] == pytest.approx(expected.cluster, rel=1e-4)
    assert done.metrics["loss_rotation"] == pytest.approx(expected.rotation, rel=1e-4)
    total = expected.cluster + expected.rotation
    assert done.metrics["loss"] == pytest.approx(total, rel=1e-4)
    name = "projector.0.weight"
    assert (done.up["model"][name] - down["model"][name]).abs().max() > 1e-3
    assert (done.up["target"][name] - down["target"][name]).abs().max() > 1e-6
    sent = done.up["local_centroids"]["c"]
    draws = place.generator("local-clusters", 2)
    again = naive_cluster(done.state["memory"]["z"].numpy(), 4, 5, draws)
    np.testing.assert_allclose(sent, again, atol=2e-5)


def test_one_step_of_the_target_is_its_mean_with_the_model_as_received(tmp_path: Path) -> None:
    fed = orchestra(tmp_path, {"local": {"steps": 1}})
    down = later(fed)
    done = fed.update(0, place_of(fed, 1), down, memory_of())
    for name, weight in fed.nets["target"].named_parameters():
        expected = EMA * down["target"][name] + (1.0 - EMA) * down["model"][name]
        torch.testing.assert_close(done.up["target"][name], expected)
        assert not weight.requires_grad
    moved = [name for name in down["target"] if "running" in name]
    assert moved  # statistics come from the target's own passes
    assert not any(torch.equal(done.up["target"][name], down["target"][name]) for name in moved)


def test_without_centroids_the_turns_are_learned_alone(tmp_path: Path) -> None:
    fed = orchestra(tmp_path)
    down, state, place = later(fed).without("centroids"), memory_of(), place_of(fed, 0)
    expected = by_hand(fed, 1, place, down, state["memory"]["z"])
    done = fed.update(1, place, down, state)
    assert_near(done.up["model"], expected.online, atol=1e-5)
    assert "loss_cluster" not in done.metrics


# ---- the first memory


@pytest.mark.parametrize("memory", [5, 22, 24, 70])
def test_a_memory_is_filled_by_the_target_and_changes_nothing_of_it(
    memory: int, tmp_path: Path
) -> None:
    """Clients have 21 or 22 samples: a larger memory takes other views of the same ones."""
    fed = orchestra(tmp_path, memory=memory)
    place, down = first_round(fed), Bundle({"target": later(fed)["target"]})
    for client in (0, 2):
        expected, epochs = filled(fed, client, place, down["target"], memory)
        assert epochs == -(-memory // SIZES[client])
        done = fed.update(client, place, down)
        assert done.state is not None and set(done.up.tensors) == {"local_centroids"}
        rows = done.state["memory"]["z"]
        assert rows.shape == (memory, WIDTH)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        assert len(rows.unique(dim=0)) == memory  # type: ignore[no-untyped-call]
        np.testing.assert_allclose(rows.norm(dim=1), np.ones(memory), rtol=1e-5)


def test_a_client_without_a_memory_fills_it_before_it_trains(tmp_path: Path) -> None:
    fed = orchestra(tmp_path)
    down, place = later(fed), place_of(fed, 4)
    memory, _ = filled(fed, 1, place, down["target"], MEMORY)
    expected = by_hand(fed, 1, place, down, memory)
    done = fed.update(1, place, down)
    assert_near(done.up["model"], expected.online, atol=1e-5)
    assert_near(done.up["target"], expected.target, atol=1e-5)  # statistics too
    assert done.state is not None
    np.testing.assert_allclose(done.state["memory"]["z"], expected.memory, atol=1e-5)


# ---- the server


def replies(fed: TwoViews, seed: int, **changes: Tensors) -> dict[int, tuple[int, Payload]]:
    found = {}
    for client, size in enumerate(SIZES):
        down = later(fed, seed + client)
        groups = {"model": down["model"], "target": down["target"]}
        sent = {"local_centroids": {"c": clouds(20 + client, 4)}, **groups, **changes}
        found[client] = (size, Bundle(sent))
    return found


def test_the_server_averages_both_networks_and_goes_on_from_its_centroids(tmp_path: Path) -> None:
    fed = orchestra(tmp_path)
    server = later(fed)
    sent = replies(fed, 50)
    after = fed.collect(server, place_of(fed, 2), sent)
    for group in ("model", "target"):
        for name, tensor in after[group].items():
            if tensor.is_floating_point():
                parts = [n * up[group][name].double() for n, up in sent.values()]
                mean = torch.stack(parts).sum(dim=0) / sum(SIZES)
                torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
    rows = torch.cat([up["local_centroids"]["c"] for _, up in sent.values()])
    fit = Descent(FIELDS["server_steps"], 0.01, 0.9, 1e-4)
    expected = fit(rows, server["centroids"]["c"], SERVER, T)
    torch.testing.assert_close(after["centroids"]["c"], expected)
    assert not torch.equal(after["centroids"]["c"], server["centroids"]["c"])
    assert set(after.tensors) == {"model", "target", "centroids"}


@pytest.mark.parametrize(("clusters", "found"), [(5, 5), (12, 12), (128, 12)])
def test_there_are_no_more_clusters_than_centroids_that_arrive_first(
    clusters: int, found: int, tmp_path: Path
) -> None:
    fed = orchestra(tmp_path, clusters=clusters)
    server, place = fed.start(), first_round(fed)
    assert set(server.tensors) == {"model", "target"}
    down = fed.broadcast(server, place)
    assert set(down.tensors) == {"target"}
    sent = {k: (n, fed.update(k, place, down).up) for k, n in enumerate(SIZES)}
    after = fed.collect(server, place, sent)
    centroids = after["centroids"]["c"]
    assert centroids.shape == (found, WIDTH)
    np.testing.assert_allclose(centroids.norm(dim=1), np.ones(found), rtol=1e-6)
    assert same(after["model"], server["model"]) and same(after["target"], server["target"])
    fewer = fed.collect(after, place_of(fed, 0), {0: replies(fed, 3)[0]})
    assert fewer["centroids"]["c"].shape == (found, WIDTH)  # of the whole run


def test_centroids_without_a_direction_move_nothing(tmp_path: Path) -> None:
    fed = orchestra(tmp_path)
    server = later(fed)
    nothing = {"c": torch.zeros(4, WIDTH)}
    after = fed.collect(server, place_of(fed, 2), replies(fed, 50, local_centroids=nothing))
    assert torch.equal(after["centroids"]["c"], server["centroids"]["c"])
    assert "centroids" not in fed.collect(
        fed.start(), place_of(fed, 2), replies(fed, 50, local_centroids=nothing)
    )


# ---- the whole run


def size(*groups: Tensors) -> int:
    return sum(t.nbytes for group in groups for t in group.values())


def test_what_is_sent(tmp_path: Path) -> None:
    fed = orchestra(tmp_path, {"run": {"rounds": 2}})
    history = fed.run().history
    assert [event.stage for event in history] == ["cluster", "train", "train"]
    online, target = fed.nets.weights(), fed.nets.weights("target")
    assert set(target) == {name for name in online if not name.startswith("predictor")}
    local, common, clients = 4 * WIDTH * 4, 10 * WIDTH * 4, len(SIZES)
    assert history[0].bytes_up == clients * local
    assert history[0].bytes_down == clients * size(target)
    for event in history[1:]:
        assert event.bytes_up == clients * (size(online, target) + local)
        assert event.bytes_down == clients * (size(online, target) + common)
        assert 0 < event.metrics["server_clusters_used"] <= 10
        assert -1.0 <= event.metrics["server_cluster_loss"] <= 0.0
    assert "train_loss" not in history[0].metrics
    for server in fed.servers():
        np.testing.assert_allclose(server["centroids"]["c"].norm(dim=1), np.ones(10), rtol=1e-6)


def test_the_whole_run_is_the_chain_of_its_rounds(tmp_path: Path) -> None:
    """Sites keep the memory from round to round; nothing else is kept."""
    fed = orchestra(tmp_path / "run", ROUGH)
    history = fed.run().history
    server, states = fed.start(), dict[int, Any]()
    for step, event in enumerate(history):
        place = (
            fed.place(step - 1, 3, before=1)
            if step
            else Round(0, 4, "cluster", 0, 1, len(SIZES), fed.config.run.seed)
        )
        down = fed.broadcast(server, place)
        uploads = {}
        for client in event.cohort:
            done = fed.update(client, place, down, states.get(client))
            uploads[client], states[client] = (SIZES[client], done.up), done.state
        server = fed.collect(server, place, uploads)
        assert server.digest() == event.digest
    for client, state in states.items():
        kept = fed.state(client, len(history))
        assert kept is not None and kept.digest() == state.digest()
        assert set(kept.tensors) == {"memory"}


def test_memories_survive_absence_and_interruption(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 3, "seed": 1}, "cohort": {"fraction": 0.34}}
    fed = orchestra(tmp_path / "run", tables)
    history = fed.run().history
    assert sorted(history[0].cohort) == [0, 1, 2]  # the first clusters come from everybody
    for client in range(len(SIZES)):
        for step in range(1, 4):
            before, after = fed.state(client, step - 1), fed.state(client, step)
            assert before is not None and after is not None
            present = client in history[step].cohort
            assert (before.digest() == after.digest()) == (not present)
    for stop in (0, 1):  # in each stage
        again = orchestra(tmp_path / f"stopped-{stop}", tables)
        again.stopped(after=stop)
        assert [server.digest() for server in again.servers()] == [e.digest for e in history]


def test_a_run_whose_first_round_nobody_answers_goes_on(tmp_path: Path) -> None:
    """Turns are learned in the next round, which brings the first centroids; then clusters too."""
    tables = {"run": {"rounds": 2, "seed": 16}, "cohort": {"drop_before": 0.6}}
    fed = orchestra(tmp_path, tables)
    history = fed.run().history
    assert [event.skipped for event in history] == [True, False, False]
    assert ["centroids" in server for server in fed.servers()] == [False, True, True]
    assert ["train_loss_cluster" in event.metrics for event in history] == [False, False, True]
    assert len(history[1].lost) == 1
    assert fed.servers()[1]["centroids"]["c"].shape == (8, WIDTH)  # four of each who answered


def test_no_label_is_used(tmp_path: Path) -> None:
    found = []
    for name, relabelled in (("plain", False), ("other", True)):
        fed = TwoViews(
            tmp_path / name, "orchestra", "rotation", ROUGH, relabelled=relabelled, **FIELDS
        )
        found.append([(e.digest, e.states, e.metrics) for e in fed.run().history])
    assert found[0] == found[1]


# ---- as published


def test_the_networks_as_published(tmp_path: Path) -> None:
    """11.69 million twice, 2,052 and 65,536 down; 8,192 in the place of the last up."""
    config = load("cifar10/orchestra", {"data.name": "digits"})
    nets = prepare(config, tmp_path).parts.nets(METHOD)
    online, target = nets["model"], nets["target"]
    assert layers(online.projector) == [
        ("fc", 512, 512), ("bn", 512), ("relu",), ("fc", 512, 512), ("bn", 512),
    ]  # fmt: skip
    assert isinstance(online.predictor, nn.Linear)
    count = {
        name: sum(p.numel() for p in part.parameters()) for name, part in online.named_children()
    }
    stem = 3 * 64 * 9 - 64 * 9  # the digits have one channel
    assert count == {
        "backbone": 11_168_832 - stem, "projector": 525_312, "predictor": 2_052,
    }  # fmt: skip
    assert sum(p.numel() for p in target.parameters()) == count["backbone"] + count["projector"]
    start = nets.weights()
    assert all(torch.equal(tensor, start[name]) for name, tensor in nets.weights("target").items())


def test_the_settings_as_published() -> None:
    config = load("cifar10/orchestra", {})
    method = {key: value for key, value in config.tables["method"].items() if key != "name"}
    assert method == {
        **{"clusters": 128, "local_clusters": 16, "memory": 128, "temperature": 0.1, "ema": 0.996},
        **{"sinkhorn_lambda": 25.0, "sinkhorn_iterations": 10, "local_iterations": 5},
        "server_sinkhorn_iterations": 100,
        **{"server_steps": 500, "server_lr": 0.01, "server_momentum": 0.9},
        "server_weight_decay": 1e-4,
    }
    local, tables = config.local, config.tables
    assert (local.epochs, local.batch_size, local.lr) == (10, 16, 0.003)
    assert (local.momentum, local.weight_decay) == (0.9, 1e-4)
    assert (tables["partition"]["clients"], tables["partition"]["beta"]) == (100, 0.1)
    assert (config.cohort.fraction, config.run.rounds) == (0.5, 100)
    assert config.data.augment == "orchestra"


@pytest.mark.parametrize("objective", ["supervised", "simclr", "byol", "swav", "simsiam"])
def test_other_objectives_are_refused(objective: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, "orchestra", objective)


def test_more_clusters_than_a_memory_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local_clusters = 30 .* at least as many, not 24"):
        orchestra(tmp_path, local_clusters=30)
