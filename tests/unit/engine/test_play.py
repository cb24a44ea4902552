"""One round over a canned executor: what is asked, what the server sees, what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from canned import (
    WEIGHT,
    Canned,
    Listener,
    by_client,
    fail,
    make_player,
    model,
    position,
    value,
    work,
)

from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import ConfigError, Diverged, RunFailed
from coterie.core.settings import ServerSettings
from coterie.core.task import METHOD, Attempt, Reply, Round, Task
from coterie.engine.cohort import Invited
from coterie.engine.play import Played, Player, is_finite
from coterie.kit import Stage, Sum
from coterie.kit.context import ServerContext

EVERYONE = Invited((1, 2, 0))
START = model(1.0)


def play(
    player: Player, stage: Stage | None = None, cohort: Invited = EVERYONE, index: int = 0
) -> Played:
    """Play a round of the toy method from the weight 1."""
    stage = stage or player.parts.stage(METHOD, "train")
    return player.round(METHOD, stage, position(index), START, cohort, Attempt(2))


def with_server(player: Player, part: Any) -> Stage:
    return replace(player.parts.stage(METHOD, "train"), server=part)


def keep(ctx: ServerContext, server: ServerState, replies: Iterator[Reply]) -> ServerState:
    """A server's part that looks at no reply."""
    return server


def test_the_server_gets_the_mean_of_what_clients_sent(tmp_path: Path) -> None:
    played = play(make_player(tmp_path, Canned()))
    assert played.server is not None
    assert value(played.server) == pytest.approx(1 + (0 * 10 + 1 * 30 + 2 * 20) / 60)
    assert played.replies.valid == [1, 2, 0]


def test_tasks_are_given_in_the_order_of_the_cohort(tmp_path: Path) -> None:
    executor = Canned()
    play(make_player(tmp_path, executor))
    assert executor.asked() == [1, 2, 0]
    for task in executor.tasks:
        assert (task.op, task.program, task.attempt) == ("update", METHOD, Attempt(2))
        assert task.round == position() and task.own is None
        assert task.down is executor.tasks[0].down  # workers keep it by identity
    assert value(executor.tasks[0].down) == 1.0


def test_a_client_that_is_lost_before_the_round_gets_no_task(tmp_path: Path) -> None:
    executor = Canned()
    played = play(make_player(tmp_path, executor), cohort=Invited((1, 2, 0), {2: "before"}))
    assert executor.asked() == played.replies.valid == [1, 0]


def test_tasks_are_made_one_at_a_time(tmp_path: Path) -> None:
    made: list[int] = []

    def address(server: ServerState, round: Round, client: int) -> Payload | None:
        made.append(client)
        return None

    def answer(task: Task) -> Reply:
        assert made[-1] == task.client
        return work(task)

    player = make_player(tmp_path, Canned(answer))
    play(player, replace(player.parts.stage(METHOD, "train"), address=address))
    assert made == [1, 2, 0]


def test_what_one_client_alone_is_sent_is_in_its_task_and_counted(tmp_path: Path) -> None:
    executor = Canned()
    player = make_player(tmp_path, executor)

    def address(server: ServerState, round: Round, client: int) -> Payload | None:
        return Bundle(scalars={"draw": client}) if client else None

    played = play(player, replace(player.parts.stage(METHOD, "train"), address=address))
    own = {task.client: task.own for task in executor.tasks}
    assert own[0] is None
    assert own[1] is not None and own[1].scalars == {"draw": 1}
    assert played.replies.bytes_down == 3 * START.nbytes() + 2 * 8


@pytest.mark.parametrize("cohort", [Invited(), Invited((0, 1), {0: "before", 1: "before"})])
def test_nothing_is_broadcast_where_nobody_is_asked(cohort: Invited, tmp_path: Path) -> None:
    executor = Canned()
    player = make_player(tmp_path, executor)

    def broadcast(server: ServerState, round: Round) -> Payload:
        raise AssertionError("nobody receives it")

    stage = replace(with_server(player, keep), broadcast=broadcast)
    played = play(player, stage, cohort)
    assert played.server is START
    assert not executor.tasks and played.replies.bytes_down == 0


def test_uploads_that_are_like_no_group_of_the_broadcast_are_an_error_of_the_method(
    tmp_path: Path,
) -> None:
    player = make_player(tmp_path, Canned())
    stage = replace(player.parts.stage(METHOD, "train"), uploads={"model": Sum(like="absent")})
    with pytest.raises(ConfigError, match="absent"):
        play(player, stage)


def test_the_servers_part_sees_only_replies_that_passed_the_screen(tmp_path: Path) -> None:
    wide = Bundle({"model": {WEIGHT: torch.zeros(2)}})
    scripts = {1: fail("failed", "a bug"), 2: lambda task: replace(work(task), up=wide)}
    player = make_player(tmp_path, Canned(by_client(scripts)))
    played = play(player)
    assert played.server is not None and value(played.server) == 1.0  # client 0 added nothing
    assert played.replies.valid == [0]
    assert list(played.replies.rejected) == ["1", "2"]


def test_a_round_without_a_valid_reply_has_no_new_state(tmp_path: Path) -> None:
    listener = Listener()
    played = play(make_player(tmp_path, Canned(fail("lost", "gone")), listener))
    assert played.server is None
    assert played.replies.first_problem() == "client 1: lost: gone"
    assert not listener.notes  # skipping a round is the loop's news


def test_a_server_that_diverges_has_no_new_state_and_says_so(tmp_path: Path) -> None:
    def diverge(ctx: ServerContext, server: ServerState, replies: Iterator[Reply]) -> ServerState:
        raise Diverged("the loss of the server is nan")

    listener = Listener()
    player = make_player(tmp_path, Canned(), listener)
    played = play(player, with_server(player, diverge))
    assert played.server is None
    assert played.replies.trouble == "the loss of the server is nan"
    (note,) = listener.notes
    assert "round 1" in note and "the loss of the server is nan" in note


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_new_state_that_is_not_finite_is_not_taken(number: float, tmp_path: Path) -> None:
    listener = Listener()
    player = make_player(tmp_path, Canned(), listener)
    played = play(player, with_server(player, lambda ctx, server, replies: model(number)))
    assert played.server is None
    (note,) = listener.notes
    assert "round 1" in note and "not finite" in note


def test_whatever_else_a_servers_part_raises_is_an_error(tmp_path: Path) -> None:
    def break_down(*_: object) -> ServerState:
        raise ZeroDivisionError

    player = make_player(tmp_path, Canned())
    with pytest.raises(ZeroDivisionError):
        play(player, with_server(player, break_down))


def test_everyone_answers_even_if_the_server_looks_at_no_reply(tmp_path: Path) -> None:
    executor = Canned()
    player = make_player(tmp_path, executor)
    played = play(player, with_server(player, keep))
    assert played.server is START
    assert executor.asked() == played.replies.valid == [1, 2, 0]


def test_what_the_server_measures_is_recorded(tmp_path: Path) -> None:
    def measure(ctx: ServerContext, server: ServerState, replies: Iterator[Reply]) -> ServerState:
        ctx.metrics["spread"] = 3.0
        return server

    player = make_player(tmp_path, Canned())
    assert play(player, with_server(player, measure)).replies.metrics() == {"server_spread": 3.0}


def test_the_server_optimiser_moves_the_average(tmp_path: Path) -> None:
    whole = play(make_player(tmp_path, Canned())).server
    half = play(make_player(tmp_path, Canned(), optimizer=ServerSettings(lr=0.5))).server
    assert whole is not None and half is not None
    assert value(half) - 1 == pytest.approx((value(whole) - 1) / 2)


def test_draws_of_the_server_follow_from_the_round_and_leave_the_generators_alone(
    tmp_path: Path,
) -> None:
    def draw(ctx: ServerContext, server: ServerState, replies: Iterator[Reply]) -> ServerState:
        return model(torch.rand(1).item())

    player = make_player(tmp_path, Canned())
    before = torch.get_rng_state()
    drawn = []
    for index in (0, 0, 1):
        server = play(player, with_server(player, draw), index=index).server
        assert server is not None
        drawn.append(value(server))
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_generators_are_left_alone_by_a_server_that_fails(tmp_path: Path) -> None:
    def draw(ctx: ServerContext, server: ServerState, replies: Iterator[Reply]) -> ServerState:
        torch.rand(1)
        raise ZeroDivisionError

    player = make_player(tmp_path, Canned())
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        play(player, with_server(player, draw))
    assert torch.equal(torch.get_rng_state(), before)


def test_reference_networks_are_taken_back_after_the_round(tmp_path: Path) -> None:
    used = []

    def look(ctx: ServerContext, server: ServerState, replies: Iterator[Reply]) -> ServerState:
        used.append(ctx.frozen(server["model"]).net)
        return server

    player = make_player(tmp_path, Canned())
    for _ in range(2):
        play(player, with_server(player, look))
    assert used[0] is used[1]


def test_questions_outside_of_rounds_are_answered_in_the_given_order(tmp_path: Path) -> None:
    executor = Canned()
    player = make_player(tmp_path, executor)
    replies = player.ask("evaluate", (2, 0), START, position(5), Attempt(3), "probe")
    assert [reply.client for reply in replies] == [2, 0]
    task = executor.tasks[0]
    assert (task.op, task.program, task.attempt.number) == ("evaluate", "probe", 3)
    assert task.round == position(5) and task.down is START


def test_a_federated_evaluator_is_played_in_silence_and_without_the_server_optimiser(
    tmp_path: Path,
) -> None:
    listener = Listener()
    player = make_player(tmp_path, Canned(), listener, ServerSettings(lr=0.5))
    inside = player.for_evaluators()
    played = play(inside)
    assert not listener.events
    assert played.server is not None and value(played.server) == pytest.approx(1 + 70 / 60)


def test_a_rehearsal_gives_the_valid_replies_and_what_they_cost(tmp_path: Path) -> None:
    player = make_player(tmp_path, Canned(by_client({1: fail("lost")})))
    stage = player.parts.stage(METHOD, "train")
    valid, replies = player.rehearse(stage, position(), START, [1, 2])
    assert [reply.client for reply in valid] == [2]
    assert replies.bytes_up == START.nbytes()


def test_a_rehearsal_in_which_nobody_answers_names_the_reason(tmp_path: Path) -> None:
    player = make_player(tmp_path, Canned(fail("failed", "a bug")))
    stage = player.parts.stage(METHOD, "train")
    with pytest.raises(RunFailed, match="client 2: failed: a bug"):
        player.rehearse(stage, position(), START, [2])


def test_a_bundle_is_finite_if_all_its_tensors_are() -> None:
    assert is_finite(Bundle()) and is_finite(START)
    assert is_finite(Bundle({"counts": {"n": torch.tensor([2**62])}}))
    assert not is_finite(START.replace(other={"w": torch.tensor([1.0, float("nan")])}))
