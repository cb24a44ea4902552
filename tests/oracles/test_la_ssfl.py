"""LA-SSFL: the global path of FedAvg, and one step of adaptation written out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import UNCHANGED, assert_near, same
from two_views import (
    SIZES,
    Spy,
    TwoViews,
    assert_global_path,
    assert_refused,
    shift,
    simsiam,
    slopes,
    windows,
)

from coterie.core.bundle import Tensors
from coterie.data.batches import DataShard

# whatever batch is drawn, it is the whole shard as it is
WHOLE: dict[str, dict[str, Any]] = {"data": {"augment": UNCHANGED}, "local": {"batch_size": 64}}


def adapted(fed: TwoViews, client: int, model: Tensors, rate: float, steps: int = 1) -> Tensors:
    """theta = Theta - beta grad L(Theta; B) in double, on all of a client's samples."""
    net = fed.double(model)
    (window,) = windows(fed.batches(client, fed.place(0)), 1)
    for _ in range(steps):
        shift(net, slopes(net, simsiam, window), rate)
    return net.state_dict()


@pytest.mark.parametrize("objective", ["simsiam", "byol", "swav"])
def test_the_global_model_is_that_of_fedavg_bit_for_bit(objective: str, tmp_path: Path) -> None:
    fed = assert_global_path(tmp_path, "la_ssfl", objective)
    assert not (fed.folder / "clients").exists() or objective == "byol"  # nothing is remembered
    server = fed.servers()[-1]["model"]
    files = fed.files()
    assert set(files) == {f"site-{client}.safetensors" for client in range(len(SIZES))}
    for model in files.values():
        assert not same({name: model[name] for name in server}, server, "backbone")


@pytest.mark.parametrize(("fields", "steps", "rate"), [({}, 1, 0.1), ({"lr": 0.4}, 3, 0.4)])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_step_of_adaptation(
    schedule: str, fields: dict[str, Any], steps: int, rate: float, tmp_path: Path
) -> None:
    """Plain, without the momentum, decay and schedule of training, at local.lr or its own rate."""
    local = {"schedule": schedule, "warmup": 2, "momentum": 0.9, "weight_decay": 0.1}
    tables = {**WHOLE, "local": {**WHOLE["local"], **local}}
    fed = TwoViews(tmp_path, "la_ssfl", tables=tables, steps=steps, **fields)
    assert fed.parts.local.lr == 0.1
    model = fed.moved()
    for step in (0, 7):
        found = fed.personal(1, fed.place(step), model)
        assert_near(found, adapted(fed, 1, model, rate, steps), atol=1e-5)


@pytest.mark.parametrize("unseen", [0, 1])
def test_the_models_after_the_last_round_of_a_cosine_are_a_whole_step_away(
    unseen: int, tmp_path: Path
) -> None:
    """Also those of clients that never trained; the round's own rate has all but vanished."""
    tables = {
        **WHOLE,
        "run": {"rounds": 30},
        "local": {**WHOLE["local"], "schedule": "cosine"},
        "cohort": {"unseen": unseen},
        "evaluate": {"every": 0, "with": ["personal_knn"], "metric": "client_knn_mean"},
    }
    fed = TwoViews(tmp_path / "run", "la_ssfl", tables=tables)
    fed.run()
    assert fed.parts.local.rate(fed.place(29, 30)) < 0.003 * fed.parts.local.lr
    model, files = fed.servers()[-1]["model"], fed.files()
    assert len(files) == len(SIZES)
    for client in range(len(SIZES)):
        expected = adapted(fed, client, model, fed.parts.local.lr)
        found = files[f"site-{client}.safetensors"]
        assert_near(found, expected, atol=1e-5)
        name = "projector.0.weight"
        assert (found[name] - model[name]).abs().max() > 1e-4


@pytest.mark.parametrize("steps", [0, 4])
def test_a_client_without_training_samples_keeps_the_model_as_it_came(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a round has a number of steps, for which no batch can be drawn."""
    fed = TwoViews(tmp_path, "la_ssfl", tables={"local": {"steps": steps}}, steps=2)
    full, rows = fed.shard(1), np.arange(1)
    empty = DataShard(fed.experiment.dataset, rows[:0], rows, augment="crop-flip")
    monkeypatch.setattr(fed, "shard", lambda client: empty)
    assert len(full) and not list(fed.context(1, fed.place(0)).batches())
    model = fed.moved()
    assert same(fed.personal(1, fed.place(0), model), model)


def test_statistics_of_norms_move_with_the_copy_once(tmp_path: Path) -> None:
    """By the two views of one batch."""
    fed = TwoViews(tmp_path, "la_ssfl")
    model = fed.moved()
    kept = {name: tensor.clone() for name, tensor in model.items()}
    found = fed.personal(1, fed.place(3), model)
    assert same(model, kept)
    counters = [name for name in found if name.endswith("num_batches_tracked")]
    assert len(counters) > 3
    assert all(int(found[name]) == int(model[name]) + 2 for name in counters)
    assert not torch.equal(found["projector.1.running_mean"], model["projector.1.running_mean"])


@pytest.mark.parametrize(("accumulate", "calls"), [(1, 1), (2, 2)])
def test_a_step_takes_one_batch_of_its_own(
    accumulate: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the samples that a training step takes, which may come in several batches."""
    fed = TwoViews(
        tmp_path, "la_ssfl", tables={"local": {"batch_size": 8, "accumulate": accumulate}}
    )
    spy, model = Spy(fed, monkeypatch), fed.moved()
    first, again = (fed.personal(1, fed.place(3), model) for _ in range(2))
    assert same(first, again)  # the tested model is the one that is written at the end
    assert [len(batch) for batch in spy.batches()] == [8] * calls * 2
    net = fed.double(model)
    shift(net, slopes(net, simsiam, spy.batches()[:calls]), fed.parts.local.lr)
    assert_near(first, net.state_dict(), atol=1e-5)


def test_clients_adapt_to_their_own_samples(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, "la_ssfl", tables=WHOLE)
    model = fed.moved()
    found = [fed.personal(client, fed.place(3), model) for client in (0, 1)]
    assert not same(found[0], found[1], "backbone")


def test_statistics_that_stay_on_clients_go_on_in_the_copy(tmp_path: Path) -> None:
    """With local statistics of norms the copy begins with those of its client."""
    fed = TwoViews(tmp_path, "la_ssfl", tables={**WHOLE, "net": {"bn_buffers": "local"}})
    model = fed.start()["model"]
    assert not any("running" in name for name in model)
    kept = fed.train(1, fed.place(2), model).keeps
    found = fed.personal(1, fed.place(2), model, kept=kept)
    expected = adapted(fed, 1, {**model, **kept["model:local"]}, fed.parts.local.lr)
    assert_near(found, expected, atol=1e-5)


@pytest.mark.parametrize("objective", ["supervised"])
def test_other_objectives_are_refused(objective: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, "la_ssfl", objective)
