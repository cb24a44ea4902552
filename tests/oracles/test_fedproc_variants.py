"""FedProc's variants: the authors' code, an extraction before the training, two stages."""

from pathlib import Path

import numpy as np
import pytest
import torch
from federation import CLASSES, COUNTS, SIZES, WIDTH, Tables, assert_near, normal, same
from fedproc_loss import by_hand, extracted, fedproc, fedproc_on_images, knowing

from coterie.experiment.config import load
from coterie.methods.fedproc import FedProc

# -- the authors' code


def test_the_train_transform_sees_other_pictures_of_the_same_samples(tmp_path: Path) -> None:
    found = {}
    for kind in ("test", "train"):
        fed = fedproc_on_images(tmp_path, proto_transform=kind)
        server, place = fed.start(), fed.place(0)
        found[kind] = fed.update(0, place, fed.broadcast(server, place)).up
    assert same(found["test"]["model"], found["train"]["model"])
    assert [up["class_counts"]["n"].tolist() for up in found.values()] == [[2] * 10] * 2
    sums = [up["class_sums"]["c"] for up in found.values()]
    assert not torch.allclose(sums[0], sums[1], rtol=1e-3)
    (batch,) = fed.shard(0).sweep()
    z = fed.reference(found["test"]["model"])(batch)
    rows = [z[batch.y == k].sum(dim=0) for k in range(10)]
    np.testing.assert_allclose(sums[0], torch.stack(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch_size", [8, 11])
def test_the_train_transform_is_the_authors_pass(batch_size: int, tmp_path: Path) -> None:
    """In train mode, without a short last batch, moving BatchNorm statistics; in no other way."""
    tables: Tables = {"net": {"norm": "bn"}, "local": {"batch_size": batch_size}}
    plain, fed = fedproc(tmp_path, tables), fedproc(tmp_path, tables, proto_transform="train")
    server, place = fed.start(), fed.place(0)
    down = fed.broadcast(server, place)
    whole, found = plain.update(1, place, down).up, fed.update(1, place, down).up
    counts = found["class_counts"]["n"]
    assert whole["class_counts"]["n"].tolist() == list(COUNTS[1])
    assert counts.sum() == SIZES[1] // batch_size * batch_size
    assert (counts <= whole["class_counts"]["n"]).all()
    for name, tensor in found["model"].items():
        moved = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(tensor, whole["model"][name]) is not moved, name


@pytest.mark.parametrize("dataset", ["digits", "fashion-mnist", "cifar10"])
def test_the_official_configuration_is_what_the_authors_code_does(dataset: str) -> None:
    expected = FedProc(
        similarity="cosine",
        proto_agg="count",
        round0="ce",
        alpha_horizon=100,
        proto_transform="train",
    )
    assert load(f"{dataset}/fedproc-official").method == expected
    assert load(f"{dataset}/fedproc").method == FedProc()


# -- rounds of other kinds


def test_an_initial_extraction_moves_no_model_and_shifts_no_alpha(tmp_path: Path) -> None:
    """c^0 from the initial model, then training from alpha = 1 on."""
    tables: Tables = {"run": {"rounds": 4}, "net": {"norm": "bn"}}
    fed = fedproc(tmp_path / "run", tables, round0="gpc_init")
    start = fed.start()
    history, servers = fed.run().history, fed.servers()
    assert [event.stage for event in history] == ["extract", *["train"] * 4]
    assert same(servers[0]["model"], start["model"])
    total, owned = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    for client in range(len(COUNTS)):
        sums, counts = extracted(fed, client, start["model"])
        total, owned = total + sums, owned + counts
    expected = total / owned[:, None]
    np.testing.assert_allclose(servers[0]["prototypes"]["c"], expected, rtol=1e-4, atol=1e-5)
    assert servers[0]["known"]["valid"].all()
    alphas = [event.metrics["train_alpha"] for event in history[1:]]
    assert alphas == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert same(servers[1]["model"], start["model"], "classifier")  # no cross-entropy at alpha = 1
    assert not same(servers[1]["model"], start["model"], "projector")


def test_without_it_all_rounds_train(tmp_path: Path) -> None:
    fed = fedproc(tmp_path / "run", {"run": {"rounds": 4}})
    history = fed.run().history
    assert [event.stage for event in history] == ["train"] * 4
    alphas = [event.metrics["train_alpha"] for event in history[1:]]
    assert alphas == pytest.approx([0.75, 0.5, 0.25])


@pytest.mark.parametrize(("rounds", "first"), [(10, 9), (100, 90), (20, 18)])
def test_two_stages_are_split_at_nine_tenths(rounds: int, first: int) -> None:
    found = [(stage.name, stage.rounds) for stage in FedProc(schedule="two-stage").stages(rounds)]
    assert found == [("extract", 1), ("features", first), ("classifier", rounds - first)]
    half = FedProc(schedule="two-stage", stage1_fraction=0.5).stages(rounds)
    assert [stage.rounds for stage in half] == [1, rounds // 2, rounds // 2]


def test_two_stages_train_the_features_then_the_classifier(tmp_path: Path) -> None:
    """Frozen parts keep their bits, BatchNorm statistics and weight decay included."""
    tables: Tables = {
        "run": {"rounds": 5},
        "net": {"norm": "bn"},
        "local": {"momentum": 0.9, "weight_decay": 0.1},
    }
    fed = fedproc(tmp_path / "run", tables, schedule="two-stage", stage1_fraction=0.6)
    start = fed.start()
    history = fed.run().history
    assert [event.stage for event in history] == [
        "extract",
        *["features"] * 3,
        *["classifier"] * 2,
    ]
    before = start["model"]
    for event, server in zip(history, fed.servers(), strict=True):
        moved = {
            prefix: not same(server["model"], before, prefix)
            for prefix in ("backbone", "projector", "classifier")
        }
        features = event.stage == "features"
        assert moved == {
            "backbone": features,
            "projector": features,
            "classifier": event.stage == "classifier",
        }
        before = server["model"]


@pytest.mark.parametrize(
    ("stage", "alpha", "parts"),
    [("features", 1.0, ("backbone", "projector")), ("classifier", 0.0, ("classifier",))],
)
@pytest.mark.parametrize("norm", ["none", "bn"])
def test_each_stage_has_one_loss(
    norm: str, stage: str, alpha: float, parts: tuple[str, ...], tmp_path: Path
) -> None:
    fed = fedproc(tmp_path, {"net": {"norm": norm}}, schedule="two-stage")
    place = fed.place(1, 5, stage, before=1)
    server = knowing(fed.start(), normal(1, CLASSES, WIDTH), (0, 1, 2))
    expected, value = by_hand(fed, 2, place, server, alpha, parts=parts)
    answer = fed.update(2, place, fed.broadcast(server, place))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
