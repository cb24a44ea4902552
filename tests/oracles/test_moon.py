"""MOON against local training written out sample by sample, from the paper's Algorithm 1."""

import math
from pathlib import Path
from typing import Any

import pytest
from federation import (
    COUNTS,
    ENTRIES,
    Federation,
    Tables,
    assert_near,
    contrast,
    fedavg,
    others,
    same,
)
from torch import Tensor
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ClientState, Tensors
from coterie.core.task import METHOD
from coterie.nets.heads import Network


def moon(folder: Path, tables: Tables | None = None, **fields: Any) -> Federation:
    return Federation(folder, "moon", tables=tables, **fields)


def remembered(*models: Tensors) -> ClientState:
    return Bundle({f"previous_{place}": model for place, model in enumerate(models)})


@pytest.mark.parametrize(
    ("fields", "tables", "previous"),
    [
        ({}, {}, 1),
        ({"mu": 1.0, "tau": 0.2}, {}, 1),
        ({"mu": 2.0, "buffer": 3}, {}, 2),
        ({"buffer": 2}, {}, 2),
        ({}, {"net": {"norm": "bn"}}, 1),
        ({}, {"local": {"batch_size": 4, "epochs": 2}}, 1),
        ({}, {"local": {"batch_size": 4, "steps": 3}}, 1),
        ({}, {"data": {"augment": "crop-flip"}, "local": {"batch_size": 4, "epochs": 2}}, 1),
    ],
)
def test_local_training_follows_algorithm_1(
    fields: dict[str, Any], tables: dict[str, dict[str, Any]], previous: int, tmp_path: Path
) -> None:
    """Defaults mu 5, tau 0.5. The references see the same images as z, frozen, in eval mode."""
    shape = (1, 9, 9) if "data" in tables else (ENTRIES,)
    fed = Federation(tmp_path, "moon", tables=tables, shape=shape, **fields)
    server, place = fed.start(), fed.place(3)
    models = others(fed, 5, 6)[:previous]
    mu, tau = fields.get("mu", 5.0), fields.get("tau", 0.5)
    glob, prevs = fed.reference(server["model"]), [fed.reference(model) for model in models]

    def loss(net: Network, batch: Batch) -> Tensor:
        out = net(batch.x.double())
        term = contrast(out.z, glob(batch), [prev(batch) for prev in prevs], tau)
        return F.cross_entropy(out.logits, batch.y) + mu * term

    expected, value = fed.trained(2, place, server["model"], loss)
    answer = fed.update(2, place, fed.broadcast(server, place), remembered(*models))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert set(answer.up.tensors) == {"model"}
    plain = Federation(tmp_path, "fedavg", tables=tables, shape=shape)
    without = plain.update(2, place, Bundle({"model": server["model"]})).up["model"]
    gaps = [float((answer.up["model"][name] - without[name]).abs().max()) for name in without]
    assert max(gaps) > 1e-3  # or the comparison above would not mean much


def test_a_client_without_a_previous_model_trains_as_fedavg(tmp_path: Path) -> None:
    """In round 0 and, by default, whenever it comes first."""
    fed, plain = moon(tmp_path), fedavg(tmp_path)
    server = fed.start()
    for step in (0, 4):
        place = fed.place(step)
        answer = fed.update(1, place, fed.broadcast(server, place))
        expected = plain.update(1, place, Bundle({"model": server["model"]}))
        assert same(answer.up["model"], expected.up["model"])
        assert answer.metrics.get("loss_contrast", 0.0) == 0.0
        assert answer.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-6)


def test_a_late_client_may_contrast_with_its_random_initialisation(tmp_path: Path) -> None:
    """The authors' code: nobody in round 0, from round 1 on whoever has not trained yet."""
    fed, plain = moon(tmp_path, first="random_init"), fedavg(tmp_path)
    server = fed.start()
    first = fed.place(0)
    expected = plain.update(1, first, Bundle({"model": server["model"]})).up["model"]
    assert same(fed.update(1, first, fed.broadcast(server, first)).up["model"], expected)
    late = fed.place(1)
    down = fed.broadcast(server, late)
    told = remembered(fed.parts.fresh(METHOD, 1, "model"))
    answer = fed.update(1, late, down)
    assert same(answer.up["model"], fed.update(1, late, down, told).up["model"])
    assert not same(
        answer.up["model"], fed.update(1, late, down, remembered(*others(fed, 2))).up["model"]
    )
    # one that has trained contrasts with what it trained
    told = remembered(*others(fed, 7))
    skip = moon(tmp_path)
    assert same(
        fed.update(1, late, down, told).up["model"], skip.update(1, late, down, told).up["model"]
    )


@pytest.mark.parametrize("buffer", [1, 3])
def test_equal_references_train_as_fedavg(buffer: int, tmp_path: Path) -> None:
    """z_glob = z_prev: the loss is the constant -log 1/(1 + B), with no gradient."""
    fed, plain = moon(tmp_path, buffer=buffer), fedavg(tmp_path)
    server, place = fed.start(), fed.place(2)
    state = remembered(*[server["model"]] * buffer)
    answer = fed.update(0, place, fed.broadcast(server, place), state)
    expected = plain.update(0, place, Bundle({"model": server["model"]}))
    assert_near(answer.up["model"], expected.up["model"])
    constant = answer.metrics["loss"] - expected.metrics["loss"]
    assert constant == pytest.approx(5.0 * math.log(1 + buffer), rel=1e-4)


def test_mu_zero_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 4}, "local": {"momentum": 0.9, "weight_decay": 1e-5}}
    plain = fedavg(tmp_path / "fedavg", tables)
    plain.run()
    for term in ("contrast", "l2"):
        fed = moon(tmp_path / term, tables, mu=0.0, term=term)
        fed.run()
        for mine, expected in zip(fed.servers(), plain.servers(), strict=True):
            assert same(mine["model"], expected["model"])


@pytest.mark.parametrize("buffer", [1, 3])
def test_the_buffer_holds_the_last_models_as_trained(buffer: int, tmp_path: Path) -> None:
    """First in, first out; kept at the end of local training, before the server averages."""
    rounds = 5
    fed = moon(tmp_path / "run", {"run": {"rounds": rounds}}, buffer=buffer)
    fed.run()
    servers, sizes = fed.servers(), [sum(row) for row in COUNTS]
    for after in range(rounds):
        states = [fed.state(client, after) for client in range(len(COUNTS))]
        newest = [state["previous_0"] for state in states if state is not None]
        assert len(newest) == len(COUNTS)
        mean = {
            name: sum(n / sum(sizes) * m[name].double() for n, m in zip(sizes, newest, strict=True))
            for name in newest[0]
        }
        assert_near(servers[after]["model"], mean, atol=1e-7)
        assert not any(same(model, servers[after]["model"]) for model in newest)
        for client, state in enumerate(states):
            assert state is not None
            held = min(buffer, after + 1)
            assert set(state.tensors) == {f"previous_{place}" for place in range(held)}
            for place in range(held):
                earlier = fed.state(client, after - place)
                assert earlier is not None
                assert same(state[f"previous_{place}"], earlier["previous_0"])


def test_a_sampled_client_keeps_the_model_of_its_last_participation(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 6}, "cohort": {"fraction": 0.34}}
    fed = moon(tmp_path / "run", tables)
    history = fed.run().history
    servers = fed.servers()
    for client in range(len(COUNTS)):
        joined = [event.round for event in history if event.cohort == [client]]
        if joined:  # alone in its round, its model is the average
            state = fed.state(client, len(history))
            assert state is not None
            assert same(state["previous_0"], servers[joined[-1]]["model"])
    assert {event.cohort[0] for event in history} > {history[-1].cohort[0]}


@pytest.mark.parametrize("mu", [0.01, 5.0])
def test_the_l2_variant(mu: float, tmp_path: Path) -> None:
    """loss = CE + mu |z - z_glob|_2: a length, not its square; z is not normalised."""
    fed = moon(tmp_path, term="l2", mu=mu)
    server, place = fed.start(), fed.place(3)
    glob = fed.reference(server["model"])

    def loss(net: Network, batch: Batch) -> Tensor:
        out = net(batch.x.double())
        gaps = (out.z - glob(batch)).square().sum(dim=1)
        moved = gaps[gaps > 1e-20].sqrt()  # none has moved at the first step: no gradient
        return F.cross_entropy(out.logits, batch.y) + mu * moved.sum() / len(batch)

    expected, value = fed.trained(2, place, server["model"], loss)
    answer = fed.update(2, place, fed.broadcast(server, place))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert answer.metrics["loss_l2"] > 0
    assert answer.state is None or not answer.state.tensors  # it needs no previous model


def test_the_l2_variant_starts_with_the_step_of_fedavg(tmp_path: Path) -> None:
    """Its gradient is zero and finite where z = z_glob."""
    one = {"local": {"steps": 1}}
    fed, plain = moon(tmp_path, one, term="l2", mu=10.0), fedavg(tmp_path, one)
    server, place = fed.start(), fed.place(3)
    answer = fed.update(0, place, fed.broadcast(server, place))
    expected = plain.update(0, place, Bundle({"model": server["model"]}))
    assert same(answer.up["model"], expected.up["model"])


def test_the_record_shows_the_parts_of_the_loss(tmp_path: Path) -> None:
    fed = moon(tmp_path / "run", {"run": {"rounds": 3}}, mu=1.0)
    metrics = fed.run().metrics
    assert metrics["train_loss"] == pytest.approx(
        metrics["train_loss_class"] + metrics["train_loss_contrast"], rel=1e-5
    )
    assert metrics["train_loss_contrast"] > 0
    for name in ("train_cos_glob", "train_cos_prev"):
        assert -1 <= metrics[name] <= 1


def test_it_sends_what_fedavg_sends(tmp_path: Path) -> None:
    """The previous model stays on the client."""
    tables = {"run": {"rounds": 2}}
    mine = moon(tmp_path / "moon", tables, buffer=2).run().history
    plain = fedavg(tmp_path / "fedavg", tables).run().history
    for one, other in zip(mine, plain, strict=True):
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
