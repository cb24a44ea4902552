"""Every shipped method under both kernels: on images, with the network that has kernels."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_methods as rules
from cases import CASES, Case

import toy
from coterie.core import registry
from coterie.native.library import Missing, library

KERNELS = ("native", "torch")
SHIPPED = [case for case in CASES if case.name in registry.names("methods")]


def under(case: Case, kernel: str) -> Case:
    """The case on small images, bytes as they are stored; labelled ones are cut and mirrored."""
    if kernel == "native" and isinstance(found := library(), Missing):
        pytest.skip(found.reason)
    images: dict[str, Any] = {
        "data": {"name": "digits", "root": "", "limit": 180, "augment": "crop-flip"},
        "run": {"rounds": 2},
        "net": {"backbone": "simple-cnn", "projection": 8, "kernel": kernel},
    }
    return replace(case, name=f"{case.name}-{kernel}", changes={**images, **case.changes})


@pytest.fixture(scope="module")
def whole(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The run of a case from start to end, made once."""

    @functools.cache
    def get(name: str, kernel: str) -> Path:
        (case,) = (case for case in SHIPPED if case.name == name)
        folder = tmp_path_factory.mktemp("whole") / "run"
        rules.run(toy_data, folder, under(case, kernel).changes)
        return folder

    return get


every_method = pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
both_kernels = pytest.mark.parametrize("kernel", KERNELS)


@both_kernels
@every_method
def test_inputs_stay_as_they_were_and_equal_inputs_give_equal_bits(
    case: Case, kernel: str, toy_data: Path, tmp_path: Path
) -> None:
    chosen = under(case, kernel)
    rules.test_inputs_stay_as_they_were_and_equal_inputs_give_equal_bits(chosen, toy_data, tmp_path)


@pytest.mark.slow
@both_kernels
@every_method
def test_a_worker_and_a_resumed_run_give_the_bits_of_a_whole_one(
    case: Case, kernel: str, toy_data: Path, tmp_path: Path, whole: Callable[[str, str], Path]
) -> None:
    folder, changes = tmp_path / "run", under(case, kernel).changes
    expected = toy.trace(whole(case.name, kernel))
    assert not any(line["lost"] or line["rejected"] or line["skipped"] for line in expected)
    worker = {**changes, "executor": {"kind": "processes", "workers": 1}}
    with pytest.raises(toy.Killed):
        rules.run(toy_data, folder, worker, recorders=[toy.StopAfter(1, toy.Killed)])
    rules.run(toy_data, folder, changes, resume=True)
    assert toy.trace(folder) == expected
    assert toy.outputs(folder) == toy.outputs(whole(case.name, kernel))


@every_method
def test_the_kernels_learn_the_same_up_to_rounding(
    case: Case, whole: Callable[[str, str], Path]
) -> None:
    """In the first round that has a loss: what two steps round otherwise grows with every step."""
    losses = []
    for kernel in KERNELS:
        rounds = [line["metrics"] for line in toy.trace(whole(case.name, kernel))]
        found = (one[key] for one in rounds for key in ("train_loss", "server_loss") if key in one)
        losses.append(next(found))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)
