"""Cards of clients, and what a server makes of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import CheckpointError, RunFailed
from coterie.deploy.federation import FILE, Card, Federation, SampleForm, agree
from coterie.deploy.gather import describe_kernels

FORM = SampleForm("image", (1, 8, 8), "uint8", (0.5,), (0.5,))
CARD = Card(FORM, 40, 10, ("cat", "dog"), True)


def test_a_card_survives_json() -> None:
    assert Card.from_plain(json.loads(json.dumps(CARD.to_plain()))) == CARD


@pytest.mark.parametrize(
    "change",
    [
        {"train": -1},
        {"train": True},
        {"test": "5"},
        {"classes": [1.5]},
        {"form": {}},
        {"form": None},
        {"classes": None},
    ],
)
def test_what_is_no_card_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Card.from_plain({**CARD.to_plain(), **change})


def test_clients_are_numbered_by_name_and_classes_are_joined() -> None:
    cards = {"b": replace(CARD, classes=("dog", "emu")), "a": CARD}
    made, refused = agree(cards)
    assert [(info.id, info.name) for info in made.clients] == [(0, "a"), (1, "b")]
    assert made.classes == ("cat", "dog", "emu") and not refused


def test_numbered_classes_are_ordered_as_numbers() -> None:
    cards = {"a": replace(CARD, classes=(10, 2)), "b": replace(CARD, classes=(0,))}
    assert agree(cards)[0].classes == (0, 2, 10)


def test_the_form_of_most_clients_counts() -> None:
    other = replace(CARD, form=replace(FORM, shape=(3, 8, 8)))
    made, refused = agree({"a": other, "b": CARD, "c": CARD})
    assert [info.name for info in made.clients] == ["b", "c"]
    assert "its samples are image uint8 3 x 8 x 8" in refused["a"]


def test_text_and_numbers_for_classes_do_not_mix() -> None:
    cards = {"a": CARD, "b": CARD, "c": replace(CARD, classes=(0, 1))}
    assert "named by numbers" in agree(cards)[1]["c"]


def test_without_a_card_there_is_no_federation() -> None:
    with pytest.raises(RunFailed, match="no client has joined"):
        agree({})


def test_a_federation_is_written_and_read(tmp_path: Path) -> None:
    made, _ = agree({"a": CARD, "b": CARD})
    made.write(tmp_path)
    assert Federation.read(tmp_path) == made
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(CheckpointError, match=FILE):
        Federation.read(tmp_path)


def test_blank_data_have_the_sizes_and_no_content(tmp_path: Path) -> None:
    made, _ = agree({"a": CARD, "b": replace(CARD, train=7, test=0)})
    dataset, shares = made.blank_data(tmp_path)
    assert shares.sizes() == {0: 40, 1: 7} and len(shares.test[1]) == 0
    assert dataset.x_train.shape == (47, 1, 8, 8) and not dataset.x_train.any()
    assert dataset.x_train.strides == (0, 0, 0, 0)
    assert np.all(dataset.y_train == -1) and dataset.class_names == ("cat", "dog")


def test_kernels_that_differ_between_clients_are_told_by_site() -> None:
    wide, narrow = replace(CARD, kernels="avx512"), replace(CARD, kernels="avx2")
    assert describe_kernels({"north": wide, "south": wide}) == ""
    told = describe_kernels({"west": narrow, "south": wide, "north": wide})
    assert told.endswith("round differently: avx512 at north, south; avx2 at west")
    assert Card.from_plain(wide.to_plain()) == wide
    with pytest.raises(ValueError, match="kernels are named by a word"):
        Card.from_plain({**wide.to_plain(), "kernels": "x\n" * 9})
