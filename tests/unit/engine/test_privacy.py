"""Private rounds over canned replies: who is drawn, what the server sees, what is recorded."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from canned import SIZES, WEIGHT, Canned, by_client, fail, model, value, work
from test_loop import make_loop

from coterie.core.bundle import ServerState
from coterie.core.settings import Cohort, PrivacySettings
from coterie.core.task import ClientInfo, Reply, Task
from coterie.engine.loop import Loop
from coterie.engine.privacy import Privacy
from coterie.engine.record import Event, NoteEvent, RoundEvent
from coterie.kit.accounting import epsilon
from coterie.kit.context import ServerContext
from coterie.kit.stages import Stage

TERMS = PrivacySettings(clip=1.0, noise=2.0, delta=1e-4)


def zeros(count: int) -> bytes:
    """Entropy that draws everybody and, as 1 - 0 has the logarithm 0, no noise."""
    return b"\0" * count


def ones(count: int) -> bytes:
    """Entropy that draws nobody at a rate below 1."""
    return b"\xff" * count


def private_loop(
    folder: Path,
    answer: Callable[[Task], Reply] = work,
    listener: Callable[[Event], None] | None = None,
    *,
    terms: PrivacySettings = TERMS,
    rate: float = 0.5,
    entropy: Callable[[int], bytes] = zeros,
    **changes: Any,
) -> Loop:
    loop = make_loop(folder, Canned(answer), listener, **changes)
    privacy = Privacy(terms, rate, len(loop.clients), entropy)
    return Loop(replace(loop.plan, privacy=privacy), loop.player, 1)


def test_every_client_is_drawn_by_itself_at_the_rate() -> None:
    everyone = [ClientInfo(number, str(number), 5) for number in range(50)]
    draw = np.random.default_rng(4)
    privacy = Privacy(TERMS, 0.3, 50, draw.bytes)
    cohorts = [
        privacy.invite(everyone, Stage("train", 9), Cohort(fraction=0.3), 0, round).clients
        for round in range(400)
    ]
    joined = np.zeros((400, 50))
    for row, cohort in zip(joined, cohorts, strict=True):
        row[list(cohort)] = 1.0
    assert abs(joined.mean() - 0.3) < 5.0 * np.sqrt(0.3 * 0.7 / joined.size)
    # a cohort of a fixed size would have no variance, independent draws have that of a binomial
    assert 0.6 < joined.sum(axis=1).var() / (50 * 0.3 * 0.7) < 1.4


def test_the_draws_of_two_rounds_or_runs_are_not_those_of_a_seed() -> None:
    everyone = [ClientInfo(number, str(number), 5) for number in range(64)]
    privacy = Privacy(TERMS, 0.5, 64)
    drawn = [privacy.invite(everyone, Stage("train", 9), Cohort(), 0, 0) for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_at_rate_one_everybody_takes_part() -> None:
    everyone = [ClientInfo(number, str(number), 5) for number in range(9)]
    invited = Privacy(TERMS, 1.0, 9, ones).invite(everyone, Stage("train", 1), Cohort(), 0, 0)
    assert sorted(invited.clients) == list(range(9))


def test_updates_are_clipped_weigh_the_same_and_are_divided_by_the_expected_number(
    tmp_path: Path,
) -> None:
    # clients add 0, 1 and 2; clipped to 1 the sum is 2, and 1.5 clients are expected
    loop = private_loop(tmp_path)
    assert value(loop.run(loop.start()).server) == pytest.approx(4 * 2 / 1.5)


def test_who_is_lost_counts_as_zero_and_nobody_else_counts_more(tmp_path: Path) -> None:
    loop = private_loop(tmp_path, by_client({1: fail("lost")}))
    assert value(loop.run(loop.start()).server) == pytest.approx(4 * 1 / 1.5)


def test_the_servers_part_sees_one_reply_without_name_or_number_of_samples(
    tmp_path: Path,
) -> None:
    seen: list[Reply] = []

    def server(ctx: ServerContext, state: ServerState, replies: Iterator[Reply]) -> ServerState:
        seen.extend(replies)
        return state

    loop = private_loop(tmp_path)
    stage, round = loop.rounds[0]
    assert loop.plan.privacy is not None
    guarded = loop.plan.privacy.protect(replace(stage, server=server))
    assert guarded.server is not None
    context = loop.player.context("method", stage, round)
    sent = (Reply(client, model(9.0), SIZES[client]) for client in SIZES)
    guarded.server(context, model(0.0), sent)
    (reply,) = seen
    assert (reply.client, reply.examples, reply.metrics) == (-1, 1, {})
    assert reply.up["model"][WEIGHT].item() == pytest.approx(3 * 1.0 / 1.5)
    assert list(sent) == []


def test_a_round_without_anybody_is_a_round_of_noise(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1)

    def entropy(count: int) -> bytes:  # the first draw of a round is that of its clients
        return ones(count) if count == 8 * len(SIZES) else drawn.bytes(count)

    loop = private_loop(tmp_path, entropy=entropy)
    after = loop.run(loop.start())
    assert [event.skipped for event in after.history] == [False] * 4
    assert value(after.server) != 0.0
    assert after.history[-1].bytes_up == 0


def test_epsilon_is_recorded_and_clients_are_not(tmp_path: Path) -> None:
    events: list[Event] = []
    alarm = Reply(2, model(1.0), 20, metrics={"loss": 3.0})
    answer = by_client({1: fail("failed", "no memory"), 2: lambda task: alarm})
    loop = private_loop(tmp_path, answer, events.append)
    history = loop.run(loop.start()).history
    for number, event in enumerate(history, start=1):
        assert event.metrics["epsilon"] == epsilon(2.0, 0.5, number, 1e-4)
        assert "train_loss" not in event.metrics
        assert (list(event.cohort), dict(event.lost), dict(event.rejected)) == ([], {}, {})
    recorded = [event for event in events if isinstance(event, RoundEvent)]
    assert tuple(recorded) == history
    notes = [event.text for event in events if isinstance(event, NoteEvent)]
    assert "round 1, client 1: failed: no memory" in notes  # the operator still hears of it


def test_every_round_is_committed_before_the_next_broadcasts_it(tmp_path: Path) -> None:
    loop, seen = private_loop(tmp_path), []

    def answer(task: Task) -> Reply:
        seen.append((task.round.index, max(loop.store.rounds(), default=-1)))
        return work(task)

    loop = private_loop(tmp_path, answer)
    loop.run(loop.start())
    assert seen and all(committed == round - 1 for round, committed in seen)


def test_a_run_ends_before_the_round_that_would_exceed_its_budget(tmp_path: Path) -> None:
    spent = [epsilon(2.0, 0.5, rounds, 1e-4) for rounds in (2, 3)]
    terms = replace(TERMS, epsilon=sum(spent) / 2)
    events: list[Event] = []
    loop = private_loop(tmp_path, listener=events.append, terms=terms)
    after = loop.run(loop.start())
    assert after.position.finished and after.position.round == 1
    assert after.history[-1].metrics["epsilon"] == spent[0] <= terms.epsilon < spent[1]
    said = [event.text for event in events if isinstance(event, NoteEvent)]
    assert f"the run ends after round 2 of 4: one more would exceed {budget(terms)}" in said
    again = private_loop(tmp_path, terms=terms)
    assert again.run(after) is after


def budget(terms: PrivacySettings) -> str:
    return f"privacy.epsilon = {terms.epsilon:g}"


def test_a_run_that_failed_in_its_last_allowed_round_plays_no_other(tmp_path: Path) -> None:
    terms = replace(TERMS, epsilon=epsilon(2.0, 0.5, 2, 1e-4))
    loop = private_loop(tmp_path, terms=terms)
    after = loop.run(loop.start())
    unfinished = replace(after, position=replace(after.position, finished=False))
    assert private_loop(tmp_path, terms=terms).run(unfinished).position.round == 1


def test_a_budget_that_all_rounds_fit_into_ends_nothing(tmp_path: Path) -> None:
    loop = private_loop(tmp_path, terms=replace(TERMS, epsilon=1000.0))
    assert len(loop.run(loop.start()).history) == 4


def test_no_part_of_the_noise_follows_from_the_seed_of_the_run(tmp_path: Path) -> None:
    ends = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        (tmp_path / name).mkdir()
        loop = make_loop(tmp_path / name, Canned(work))
        privacy = Privacy(TERMS, 1.0, len(loop.clients))
        loop = Loop(replace(loop.plan, privacy=privacy), loop.player, 1)
        ends.append(value(loop.run(loop.start()).server))
    assert ends[0] != ends[1]
