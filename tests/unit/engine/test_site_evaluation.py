# ruff: noqa: F811
"""What a site does outside of updates: evaluations, personal models, states of programs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from canned import (
    WEIGHT,
    FixedOnClients,
    PreparedProgram,
    Program,
    model,
    position,
    value,
)
from safetensors.torch import load_file
from test_site import SHARES, MakeSite, Part, dataset, evaluate, make, remember, saved, update  # noqa: F401

from coterie.core.bundle import ClientState, Payload
from coterie.core.task import Task
from coterie.kit.context import ClientContext, Shard
from coterie.kit.networks import Frozen


def test_evaluators_of_clients_measure_the_global_model_on_their_own_data(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: FixedOnClients, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        (test,) = data.sweep(test=True)
        return {"h": net(test.x).h.sum().item(), "train": float(len(data))}

    monkeypatch.setattr(FixedOnClients, "__call__", look)
    site = make(evaluators={"look": FixedOnClients()})
    reply = site.run(evaluate(0))
    assert reply.metrics == {"look/h": 2.0 * 2 * (0 + 1 + 2), "look/train": 6.0}
    assert reply.examples == 3
    assert site.run(evaluate(1)).metrics == {}  # it holds no test samples


def test_a_clients_own_model_is_measured_where_the_method_makes_one(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: FixedOnClients, net: Any, data: Shard, seed: int) -> Mapping[str, float]:
        return {"weight": net.net.backbone.scale.item()}

    monkeypatch.setattr(FixedOnClients, "__call__", look)
    site = make(
        personal=lambda ctx, down, state: {WEIGHT: torch.tensor([9.0])},
        evaluators={"look": FixedOnClients()},
    )
    assert site.run(evaluate()).metrics == {"look/weight": 9.0}


def test_evaluators_that_pool_train_on_everyones_samples(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: FixedOnClients, net: Any, data: Any, seed: int) -> Mapping[str, float]:
        return {"train": float(len(data)), "test": float(data.tests)}

    monkeypatch.setattr(FixedOnClients, "__call__", look)
    monkeypatch.setattr(FixedOnClients, "pools", True)
    site = make(evaluators={"look": FixedOnClients()})
    assert site.run(evaluate()).metrics == {"look/train": 12.0, "look/test": 3.0}


def test_evaluators_of_all_tests_need_no_test_samples_of_the_clients_own(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: FixedOnClients, net: Any, data: Any, seed: int) -> Mapping[str, float]:
        return {"train": float(len(data)), "test": float(data.tests)}

    monkeypatch.setattr(FixedOnClients, "__call__", look)
    monkeypatch.setattr(FixedOnClients, "all_tests", True)
    site = make(evaluators={"look": FixedOnClients()})
    whole = float(len(site.dataset.y_test))
    for client in (0, 1):  # the second has no test samples
        found = site.run(evaluate(client)).metrics
        assert found == {"look/train": float(len(SHARES.train[client])), "look/test": whole}


def test_evaluators_that_wait_for_the_last_round_do_so_on_clients(make: MakeSite) -> None:
    site = make(evaluators={"late": FixedOnClients()}, last=("late",))
    assert site.run(evaluate(index=0)).metrics == {}
    assert site.run(evaluate(index=9)).metrics == {"late/score": 0.5}


def test_a_clients_own_model_is_left_in_a_file_of_its_name(make: MakeSite, tmp_path: Path) -> None:
    site = make(personal=lambda ctx, down, state: {WEIGHT: torch.tensor([9.0])})
    reply = site.run(replace(evaluate(1), op="personal"))
    assert reply.error is None and reply.metrics == {}
    weights = load_file(tmp_path / "personal" / "1.safetensors")
    assert weights[WEIGHT].item() == 9.0


def test_a_client_without_a_model_of_its_own_leaves_the_global_one(
    make: MakeSite, tmp_path: Path
) -> None:
    assert make().run(replace(evaluate(), op="personal")).error is None
    weights = load_file(tmp_path / "personal" / "0.safetensors")
    assert weights[WEIGHT].item() == value(evaluate().down, "evaluated")


def test_states_of_a_program_last_for_one_evaluation_and_are_not_the_methods(
    make: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def part(self: Program, ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        seen.append(None if state is None else state.scalars["count"])
        return remember(ctx, down, state)

    monkeypatch.setattr(Program, "client_update", part)
    site = make(evaluators={"program": Program()})
    for index in (0, 1, 0):  # two rounds, then the first one of another evaluation
        place = replace(position(index), stage="evaluate")
        site.run(Task("update", 0, place, model(1.0), program="program"))
    assert seen == [None, 1, None]
    assert not saved(tmp_path)


def test_clients_prepare_for_a_program_with_the_model_under_test(make: MakeSite) -> None:
    site = make(evaluators={"prepared": PreparedProgram()})
    began = site.run(evaluate(index=5, program="prepared"))
    assert began.error is None and began.metrics == {}
    place = replace(position(0), stage="evaluate")
    reply = site.run(Task("update", 0, place, model(0.0), program="prepared"))
    assert reply.error is None and value(reply.up) == 2.0
