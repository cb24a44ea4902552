"""Stages as values: what is filled in, what is refused before a run, how rounds are counted."""

from dataclasses import dataclass, replace
from typing import Any, final

import pytest

from coterie.core.errors import ConfigError
from coterie.kit import Mean, Method, Stage, Sum, resolve, split, stock, trim
from coterie.kit.stages import plan_rounds


class Bare(Method):
    """A method with the slots that every one must have, and no part for clients or server."""

    init = stock.start_from_net
    broadcast = stock.send_model
    model = stock.global_model


@final
@dataclass(frozen=True)
class Twofold(Bare):
    """Two stages with functions of their own."""

    server_update = stock.average

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        first = Stage("first", 2, client=self.act, uploads={"sums": Sum(like="model")})
        return first, replace(first, name="second", rounds=rounds, uploads=None)

    def act(self, ctx: Any, down: Any, state: Any) -> Any:
        return down, state


def test_a_stage_gets_the_methods_slots_for_what_it_does_not_bring() -> None:
    method = Twofold()
    first, second = resolve(method, 5)
    assert (first.rounds, second.rounds) == (2, 5)
    assert first.client == method.act
    assert first.broadcast == method.broadcast and first.server == method.server_update
    assert first.uploads == {"sums": Sum(like="model")}
    assert second.uploads == Method.reduce == {"model": Mean()}


def test_a_stage_without_a_function_in_both_places_is_refused() -> None:
    with pytest.raises(ConfigError, match="'train' of Bare has no function for 'client'"):
        resolve(Bare(), 1)


def test_rounds_on_the_server_alone_need_no_part_of_a_client() -> None:
    @dataclass(frozen=True)
    class Alone(Bare):
        server_update = stock.average

        def stages(self, rounds: int) -> tuple[Stage, ...]:
            return (Stage("think", rounds, "none"),)

    (stage,) = resolve(Alone(), 3)
    assert stage.client is None


def test_stages_of_one_name_have_the_same_functions() -> None:
    @dataclass(frozen=True)
    class Torn(Bare):
        client_update = stock.train_objective
        server_update = stock.average

        def stages(self, rounds: int) -> tuple[Stage, ...]:
            stage = Stage("train", rounds)
            return stage, replace(stage, required=True), replace(stage, uploads={})

    with pytest.raises(ConfigError, match="two stages 'train' with other functions or uploads"):
        resolve(Torn(), 3)


@pytest.mark.parametrize("stages", [(), (Stage("train", 0),)])
def test_a_run_without_rounds_is_refused(stages: tuple[Stage, ...]) -> None:
    @dataclass(frozen=True)
    class Empty(Bare):
        client_update = stock.train_objective
        server_update = stock.average

        def stages(self, rounds: int) -> tuple[Stage, ...]:
            return stages

    with pytest.raises(ConfigError, match=r"Empty has (no stage|0 rounds)"):
        resolve(Empty(), 3)


def test_a_wrong_rule_fails_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"the stage 'train' reduces the group 'model' by 'mean'"):
        Stage("train", 1, uploads={"model": "mean"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"Wrong reduces the group 'model' by 'mean'"):

        class Wrong(Bare):
            reduce = {"model": "mean"}  # type: ignore[dict-item, assignment]  # noqa: RUF012


def test_steps_count_all_rounds_of_a_name() -> None:
    send, epoch = Stage("send", 1), Stage("epoch", 1)
    planned = plan_rounds((Stage("sense", 2), *((send, epoch) * 3)), clients=4, seed=9)
    rounds = [round for _, round in planned]
    assert [round.index for round in rounds] == list(range(8))
    assert {(round.total, round.clients, round.seed) for round in rounds} == {(8, 4, 9)}
    epochs = [(r.step, r.steps) for r in rounds if r.stage == "epoch"]
    assert epochs == [(0, 3), (1, 3), (2, 3)]
    assert [(r.step, r.steps) for r in rounds if r.stage == "sense"] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("rounds", "fraction", "parts"),
    [(10, 0.9, (9, 1)), (2, 0.9, (1, 1)), (1, 0.9, (1, 0)), (3, 0.0, (1, 2)), (4, 1.0, (3, 1))],
)
def test_both_parts_of_a_split_have_a_round_if_two_fit(
    rounds: int, fraction: float, parts: tuple[int, int]
) -> None:
    assert split(rounds, fraction) == parts


def test_trimming_leaves_stages_with_rounds() -> None:
    kept = Stage("train", 1)
    assert trim(None, Stage("extract", 0), kept) == (kept,)
