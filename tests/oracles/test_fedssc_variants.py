"""FedSSC's variants: an extraction before the training, two stages, other negatives."""

import math
from pathlib import Path

import pytest
import torch
from federation import CLASSES, WIDTH, Tables, assert_near, normal, others, same
from fedssc_loss import addressed, by_hand, fedssc

from coterie.core.bundle import Bundle
from coterie.methods.fedssc import FedSSC


def test_an_initial_extraction_moves_no_model_and_shifts_no_schedule(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 4}, "net": {"norm": "bn"}}
    fed = fedssc(tmp_path / "run", tables, init_with="extract", hold=1, min_count=5)
    start = fed.start()
    history, servers = fed.run().history, fed.servers()
    assert len(history) == 5
    assert same(servers[0]["model"], start["model"])
    assert not same(servers[1]["model"], start["model"])
    weights = [event.metrics["train_mu_glob"] for event in history[1:]]
    assert weights == pytest.approx([1.0, 1.0, 1 - 0.9999 / 3, 1 - 2 * 0.9999 / 3])
    # the vectors of client 1 for class 2 and of client 2 for class 2, by the initial model
    options = []
    for client in (1, 2):
        (batch,) = fed.shard(client).sweep()
        options.append(fed.reference(start["model"])(batch)[batch.y == 2].mean(dim=0).float())
    own = fed.address(servers[0], fed.place(0, 4, before=1), 0)
    assert own is not None
    assert own["known"]["valid"].all()
    assert any(torch.allclose(own["representations"]["zs"][2], one, atol=1e-5) for one in options)


def test_the_weight_falls_over_a_run(tmp_path: Path) -> None:
    fed = fedssc(tmp_path / "run", {"run": {"rounds": 5}}, hold=2, min_count=5)
    history = fed.run().history
    weights = [event.metrics["train_mu_glob"] for event in history[1:]]
    assert weights == pytest.approx([1.0, 1.0, 1 - 0.9999 / 3, 1 - 2 * 0.9999 / 3])


def test_two_stages_train_the_features_then_the_classifier(tmp_path: Path) -> None:
    """Frozen parts keep their bits, BatchNorm statistics and weight decay included."""
    tables: Tables = {
        "run": {"rounds": 5},
        "net": {"norm": "bn"},
        "local": {"momentum": 0.9, "weight_decay": 0.1},
    }
    fields = {"two_stage": True, "stage1_fraction": 0.6, "min_count": 5}
    fed = fedssc(tmp_path / "run", tables, **fields)
    before = fed.start()["model"]
    fed.run()
    found = []
    for server in fed.servers():
        parts = ("backbone", "projector", "classifier")
        found.append([part for part in parts if not same(server["model"], before, part)])
        before = server["model"]
    features, classifier = ["backbone", "projector"], ["classifier"]
    assert found == [[], *[features] * 3, *[classifier] * 2]


def test_two_stages_are_split_at_nine_tenths() -> None:
    for rounds in (10, 100):
        stages = [stage.rounds for stage in FedSSC(two_stage=True).stages(rounds)]
        assert stages == [1, rounds * 9 // 10, rounds // 10]


@pytest.mark.parametrize("stage1", ["glob", "moon+glob"])
def test_the_first_stage_has_no_cross_entropy(stage1: str, tmp_path: Path) -> None:
    """The weight of the shared term is constant there."""
    fed = fedssc(tmp_path, two_stage=True, stage1=stage1)
    name = fed.method.stages(10)[1].name
    server, zs = fed.start(), normal(1, CLASSES, WIDTH)
    (previous,) = others(fed, 6)
    for step in (1, 8):
        place = fed.place(step, 9, name, before=1)
        expected, value = by_hand(
            fed,
            2,
            place,
            server["model"],
            mu_glob=1.0,
            zs=zs,
            previous=previous if stage1 == "moon+glob" else None,
            mu_class=0.0,
            parts=("backbone", "projector"),
        )
        down = fed.broadcast(server, place)
        answer = fed.update(2, place, down, Bundle({"previous": previous}), addressed(zs))
        assert_near(answer.up["model"], expected, atol=1e-5)
        assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)


def test_the_second_stage_is_cross_entropy_on_frozen_features(tmp_path: Path) -> None:
    fed = fedssc(tmp_path, {"net": {"norm": "bn"}}, two_stage=True)
    place = fed.place(0, 1, fed.method.stages(10)[2].name, before=10)
    server, zs = fed.start(), normal(1, CLASSES, WIDTH)
    expected, value = by_hand(
        fed, 2, place, server["model"], mu_glob=0.0, zs=zs, parts=("classifier",)
    )
    down = fed.broadcast(server, place)
    answer = fed.update(2, place, down, Bundle({"previous": others(fed, 6)[0]}), addressed(zs))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)


def test_a_device_of_unknown_classes_only_does_not_fail(tmp_path: Path) -> None:
    """In the first stage, without one vector for its samples, there is nothing to descend."""
    fed = fedssc(tmp_path, two_stage=True)
    place = fed.place(0, 9, fed.method.stages(10)[1].name, before=1)
    server = fed.start()
    own = addressed(normal(1, CLASSES, WIDTH), (2,))
    answer = fed.update(0, place, fed.broadcast(server, place), own=own)
    assert same(answer.up["model"], server["model"])


@pytest.mark.parametrize("negative", ["previous", "other_class", "none"])
def test_other_negatives_stay_finite(negative: str, tmp_path: Path) -> None:
    """The paper saw them collapse: the spread of the features is recorded."""
    fed = fedssc(tmp_path / "run", {"run": {"rounds": 4}}, negative=negative, min_count=5)
    history = fed.run().history
    for event in history:
        assert not event.rejected
        assert all(math.isfinite(value) for value in event.metrics.values())
        assert event.metrics["train_feature_std"] > 0
    for server in fed.servers():
        assert all(tensor.isfinite().all() for tensor in server["model"].values())


def test_other_negatives_are_other_losses(tmp_path: Path) -> None:
    found = []
    for negative in ("previous", "other_class", "none"):
        fed = fedssc(tmp_path, negative=negative)
        server, place = fed.start(), fed.place(3)
        state = Bundle({"previous": others(fed, 6)[0]})
        own = addressed(normal(1, CLASSES, WIDTH))
        down = fed.broadcast(server, place)
        found.append(fed.update(2, place, down, state, own).up["model"])
    assert not same(found[0], found[1])
    assert not same(found[0], found[2])
    assert not same(found[1], found[2])
