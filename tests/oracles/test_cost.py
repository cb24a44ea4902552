"""What FedSimCLR and MFCL send, by hand: Table 8 of the MFCL paper."""

from pathlib import Path

import pytest

from coterie.core.errors import ConfigError
from coterie.experiment import config as configuration
from coterie.reproduce import plan, recipe
from coterie.reproduce.cost import Leg, count_quantities, count_study, judge_printed, legs
from coterie.reproduce.recipe import Cost

CODED, PLAIN = Cost(code=3), Cost()

# ResNet-18 for small images, by stage; a 3 x 3 convolution has 9 in out, a norm 2 out
STEM = 9 * 3 * 64 + 2 * 64
FIRST = 4 * (9 * 64 * 64 + 2 * 64)
RESNET = STEM + FIRST
NORMED = 64 + 4 * 64  # channels that are normalised
for width in (128, 256, 512):
    before = width // 2
    RESNET += 9 * before * width + 3 * 9 * width * width + before * width + 5 * 2 * width
    NORMED += 5 * width
PROJECTOR = 512 * 512 + 512 * 512 + 512 * 128 + 2 * (512 + 512 + 128)
SENSOR = 114_691
ENCODER = 9 * 3 * 64 + 9 * 64 * 64 + 2 * 2 * 64


def printed(name: str) -> list[Leg]:
    """A shipped configuration as the recipe has it."""
    made = plan.make_study(recipe.load("mfcl-table8"), "paper")
    cell = made.cell(name, made.columns[0].name)
    assert cell is not None
    return legs(made.config(cell, cell.points[0], 0), made.recipe.cost)


def test_fedsimclr_sends_its_whole_network_both_ways() -> None:
    assert RESNET == 11_168_832
    (leg,) = printed("FedSimCLR")
    assert leg.parameters == RESNET + PROJECTOR == 11_760_960
    statistics = 2 * (NORMED + 512 + 512 + 128)  # mean and variance of every channel
    counters = 20 + 3  # int64, one for every norm
    assert leg.down == leg.up == 4 * (RESNET + PROJECTOR + statistics) + 8 * counters
    assert (leg.stage, leg.rounds, leg.pair, leg.each) == ("train", 800, 0, 0)


def test_mfcl_sends_its_sensor_and_then_pairs_of_representations() -> None:
    sense, upload = printed("MFCL")
    assert sense == Leg("sense", 15, down=4 * SENSOR, up=4 * SENSOR, parameters=SENSOR)
    pair = 2 * 64 * 32 * 32
    assert upload == Leg("upload", 1, 4 * ENCODER, up=0, parameters=0, pair=pair, each=2 * pair)
    assert upload.each == 2 * 65_536 * 2  # fp16


def test_the_quantities_of_the_table_by_hand() -> None:
    whole = [Leg("train", 800, 0, 0, parameters=11_000_000)]
    sense = Leg("sense", 15, 0, 0, parameters=100_000)
    modular = [sense, Leg("upload", 1, 0, 0, 0, pair=2 * 65_536)]
    first, second = count_quantities(whole, CODED, 800), count_quantities(modular, CODED, 400)
    found = {name: (first[name], second[name]) for name in first}
    once = 5000 * 65_536 * 96  # bits of one view: 32 each, three times
    phase = 15 * 100_000 * 2 * 96
    assert found == {
        "parameters": (11_000_000, 100_000),
        "round_bits": (2_112_000_000, 19_200_000),  # printed 20e8, 20e6
        "training_bits": (1_689_600_000_000, 288_000_000),  # printed 16e11, 30e7
        "representations": (0, 327_680_000),  # printed 40e5
        "upload_bits": (0, 31_457_280_000),  # printed 30e10
        "pair_bits": (0, 62_914_560_000),
        "total_bits": (16_896_000_000_000, 10 * (phase + once)),  # printed 16e12, 30e11
        "total_pair_bits": (16_896_000_000_000, 10 * (phase + 2 * once)),
        "total_epoch_bits": (16_896_000_000_000, 10 * (phase + 800 * once)),
    }
    total, one, two, anew = (
        found[name][place]
        for name, place in (
            *(("total_bits", 0), ("total_bits", 1)),
            *(("total_pair_bits", 1), ("total_epoch_bits", 1)),
        )
    )
    assert total / one == pytest.approx(53.2, abs=0.1)
    assert total / two == pytest.approx(26.7, abs=0.1)
    assert anew / total == pytest.approx(14.9, abs=0.1)
    plain = count_quantities(modular, PLAIN, 400)
    assert all(3 * plain[name] == second[name] for name in plain if name.endswith("_bits"))


def test_a_printed_figure_may_be_off_by_a_quarter() -> None:
    assert judge_printed(125.0, 100.0) == judge_printed(80.0, 100.0) == "within"
    assert judge_printed(0.0, 0.0) == "within"
    assert judge_printed(126.0, 100.0) == "not reproduced: printed 1.26 times too little"
    assert judge_printed(50.0, 100.0) == "not reproduced: printed 2 times too much"
    assert judge_printed(5.0, 0.0) == "not reproduced"
    assert judge_printed(5.0, None) == "-"


def test_other_sensors_and_views_are_counted_as_they_are_sent() -> None:
    said = {
        "method": {"share_representations": True, "share_labels": True, "sensor": "table5"},
        "run": {"rounds": 7},
    }
    said["method"] |= {"sensor_width": 8, "views_cached": 3, "precision": "fp32"}
    _, upload = legs(configuration.load("cifar10/mfcl", said), CODED)
    pair = 3 * 2 * 8 * 16 * 16
    assert (upload.pair, upload.each) == (pair, 4 * pair + 3 * 8)  # a label for every pair
    said["method"] |= {"views_cached": 1, "refresh": "epoch"}
    _, upload = legs(configuration.load("cifar10/mfcl", said), CODED)
    assert upload.rounds == 7
    quantities = count_quantities([upload], Cost(samples=100, bits=1, clients=1), 7)
    assert quantities["representations"] == 100 * 8 * 16 * 16
    assert quantities["total_epoch_bits"] == 2 * 7 * quantities["representations"]


def test_a_quantity_that_is_not_known_is_refused(tmp_path: Path) -> None:
    text = (recipe.RECIPES / "mfcl-table8.toml").read_text()
    file = tmp_path / "other.toml"
    file.write_text(text.replace('"round_bits"', '"rounds_bits"'))
    with pytest.raises(ConfigError, match="measure = 'cost', metric = 'rounds_bits' is not known"):
        count_study(plan.make_study(recipe.load(str(file)), "paper"))
