"""What sites and the server are built from: JSON in and out, and the objects made of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import pytest
import torch
from canned import (
    WEIGHT,
    Fixed,
    FixedOnClients,
    Program,
    Scale,
    Toy,
    make_spec,
    model,
    position,
    value,
)

from coterie.core.errors import ConfigError
from coterie.core.settings import Local, NetSettings
from coterie.core.task import METHOD
from coterie.engine.spec import Parts, Spec
from coterie.kit import stock
from coterie.kit.builder import Builder
from coterie.kit.method import Method
from coterie.nets.heads import Network


@final
@dataclass(frozen=True)
class Drawn(Method):
    """A method whose one weight is drawn."""

    objectives = None

    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model

    def nets(self, build: Builder) -> dict[str, Network]:
        backbone = Scale()
        torch.nn.init.normal_(backbone.scale)
        return {"model": Network(backbone)}


def test_a_spec_survives_json(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        shape=(3, 8, 8),
        net=NetSettings(norm="gn", kernel="torch"),
        local=Local(schedule="step", milestones=(2, 5)),
        method=Toy(quorum=2),
        evaluators={"one": Fixed(value=0.25), "program": Program(rounds=7)},
        last=("one",),
    )
    again = Spec.from_json(spec.to_json())
    assert again == spec
    assert Parts(again).method == Toy(quorum=2)
    assert Parts(again).evaluators == {"one": Fixed(value=0.25)}


def test_evaluators_that_take_rounds_are_programs(tmp_path: Path) -> None:
    evaluators = {"one": Fixed(), "program": Program(), "own": FixedOnClients()}
    parts = Parts(make_spec(tmp_path, evaluators=evaluators))
    assert list(parts.evaluators) == ["one", "own"]
    assert list(parts.programs) == ["program"]
    assert parts.program("program") is parts.programs["program"]
    assert parts.program(METHOD) is parts.method


def test_evaluators_named_for_the_last_round_are_due_in_no_other(tmp_path: Path) -> None:
    parts = Parts(make_spec(tmp_path, last=("late",)))
    early, last = position(0, total=2), position(1, total=2)
    assert [parts.due("late", round) for round in (early, last)] == [False, True]
    assert [parts.due("always", round) for round in (early, last)] == [True, True]


def test_a_method_has_the_rounds_of_the_run_and_a_program_its_own(tmp_path: Path) -> None:
    parts = Parts(make_spec(tmp_path, rounds=9, evaluators={"program": Program(rounds=3)}))
    assert [stage.rounds for stage in parts.stages(METHOD)] == [9]
    assert [stage.rounds for stage in parts.stages("program")] == [3]
    assert parts.stage("program", "evaluate") is parts.stages("program")[0]


def test_the_start_of_a_run_follows_from_its_seed_alone(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, method=Drawn())
    torch.manual_seed(1)
    first = value(Parts(spec).start())
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert value(Parts(spec).start()) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert value(Parts(replace(spec, seed=8)).start()) != first


def test_every_client_has_fresh_weights_of_its_own_the_same_every_time(tmp_path: Path) -> None:
    parts = Parts(make_spec(tmp_path, method=Drawn()))
    drawn = [parts.fresh(METHOD, client, "model")[WEIGHT].item() for client in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert drawn[0] != value(parts.start())


def test_networks_are_built_once(tmp_path: Path) -> None:
    parts = Parts(make_spec(tmp_path))
    assert parts.nets(METHOD) is parts.nets(METHOD)


def test_a_program_without_networks_of_its_own_takes_those_of_the_method(tmp_path: Path) -> None:
    parts = Parts(make_spec(tmp_path, evaluators={"program": Program()}))
    assert list(parts.nets("program").weights()) == [WEIGHT]
    assert parts.nets("program") is not parts.nets(METHOD)


def test_a_method_without_a_global_model_is_named_where_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(make_spec(tmp_path))
    assert parts.global_model(model(3.0))[WEIGHT].item() == 3.0
    monkeypatch.setattr(Toy, "model", lambda self, server: None)
    with pytest.raises(ConfigError, match=r"Toy.*evaluate\.with"):
        parts.global_model(model(3.0))


def test_every_program_spools_to_a_folder_of_its_own(tmp_path: Path) -> None:
    parts = Parts(make_spec(tmp_path, evaluators={"program": Program()}))
    folders = {parts.spool(METHOD), parts.spool("program")}
    assert len(folders) == 2 and {folder.parent for folder in folders} == {tmp_path / "spool"}
