"""When and how a model is evaluated, with canned replies and evaluators of fixed values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from canned import (
    NO_DATA,
    Canned,
    Fixed,
    FixedOnClients,
    Listener,
    PreparedProgram,
    Program,
    Toy,
    by_client,
    fail,
    make_player,
    model,
    position,
    value,
    work,
)

from coterie.core.errors import CheckpointError, ConfigError, RunFailed
from coterie.core.settings import EvaluateSettings
from coterie.core.task import METHOD, Attempt, Reply, Task
from coterie.engine.evaluation import Evaluation, Measured, evaluation_payload
from coterie.engine.record import ClientEvent, NoteEvent
from coterie.kit.context import Shard

SERVER = model(4.0)


def measure(
    folder: Path,
    executor: Canned,
    evaluators: Mapping[str, Any],
    listener: Listener | None = None,
    *,
    index: int = 0,
    holdout: Shard | None = None,
    last: tuple[str, ...] = (),
    **settings: Any,
) -> Measured:
    """Evaluate the weight 4 after a round of the toy method."""
    player = make_player(folder, executor, listener, evaluators=evaluators, last=last)
    evaluation = Evaluation(EvaluateSettings(**settings), NO_DATA, holdout)
    return evaluation.measure(player, position(index), SERVER, Attempt())


def score(number: float, key: str = "own") -> Any:
    """Answer an evaluation with a score."""
    return lambda task: Reply(task.client, examples=1, metrics={f"{key}/score": number})


SCORES = by_client({0: score(0.0), 1: score(0.1), 2: score(0.2)})


def no_global_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the toy method one in which every client has a model of its own."""
    monkeypatch.setattr(Toy, "model", lambda self, server: None)
    monkeypatch.setattr(Toy, "personal", lambda self, ctx, down, state: down["model"])


@pytest.mark.parametrize(
    ("every", "due"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (3, [2, 3]), (0, [3]), (9, [3])]
)
def test_an_evaluation_is_due_every_so_many_rounds_and_after_the_last(
    every: int, due: list[int]
) -> None:
    evaluation = Evaluation(EvaluateSettings(every=every), NO_DATA)
    assert [index for index in range(4) if evaluation.due(position(index, total=4))] == due


def test_without_evaluators_nobody_is_asked_and_nothing_is_measured(tmp_path: Path) -> None:
    executor = Canned()
    assert measure(tmp_path, executor, {}) == Measured()
    assert not executor.tasks


def test_an_evaluator_of_the_server_asks_nobody(tmp_path: Path) -> None:
    executor = Canned()
    assert measure(tmp_path, executor, {"fixed": Fixed()}).metrics == {"score": 0.5}
    assert not executor.tasks


def test_evaluators_of_the_server_get_its_model_its_data_and_a_seed_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(self: Fixed, net: Any, data: Shard, seed: int) -> Mapping[str, float]:
        seen.append((net(torch.ones(1, 2)).h.item(), data, seed))
        return {}

    monkeypatch.setattr(Fixed, "__call__", look)
    for index in (0, 1):
        measure(tmp_path, Canned(), {"fixed": Fixed()}, index=index)
    assert seen[0] == seen[1] and seen[0][:2] == (8.0, NO_DATA)


def test_samples_that_were_set_aside_are_measured_under_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = cast(Shard, object())
    monkeypatch.setattr(
        Fixed, "__call__", lambda self, net, data, seed: {"score": float(data is apart)}
    )
    measured = measure(tmp_path, Canned(), {"fixed": Fixed()}, holdout=apart)
    assert measured.metrics == {"score": 0.0, "holdout_score": 1.0}


def test_evaluation_on_the_server_leaves_the_generators_alone_and_its_networks_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = []

    def draw(self: Fixed, net: Any, data: Shard, seed: int) -> Mapping[str, float]:
        nets.append(net.net)
        return {"drawn": torch.rand(1).item()}

    monkeypatch.setattr(Fixed, "__call__", draw)
    player = make_player(tmp_path, Canned(), evaluators={"fixed": Fixed()})
    evaluation = Evaluation(EvaluateSettings(), NO_DATA)
    before = torch.get_rng_state()
    first, again = (
        evaluation.measure(player, position(), SERVER, Attempt()).metrics for _ in range(2)
    )
    assert first == again and nets[0] is nets[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_clients_with_test_samples_are_asked_largest_first(tmp_path: Path) -> None:
    executor = Canned(score(0.5), tests={0: 5, 2: 1})
    measure(tmp_path, executor, {"own": FixedOnClients()})
    assert executor.asked("evaluate") == [2, 0]  # client 1 holds no test samples
    task = executor.tasks[0]
    assert task.program == METHOD and value(task.down, "evaluated") == 4.0


def test_the_scores_of_clients_are_summarised_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    measured = measure(tmp_path, Canned(SCORES), {"own": FixedOnClients()})
    assert list(measured.metrics.items()) == [("score_0", 0.0), ("score_1", 0.1), ("score_2", 0.2)]


def test_the_bytes_of_an_evaluation_are_the_model_for_everyone_who_is_asked(tmp_path: Path) -> None:
    answer = by_client({1: fail("failed")}, score(0.5))
    measured = measure(tmp_path, Canned(answer), {"own": FixedOnClients()})
    assert (measured.bytes_down, measured.bytes_up) == (3 * 4, 0)


def test_a_client_that_was_not_evaluated_leaves_a_note_and_no_score(tmp_path: Path) -> None:
    listener = Listener()
    answer = by_client({1: fail("failed", "a bug", "Traceback ...")}, score(0.5))
    measured = measure(tmp_path, Canned(answer), {"own": FixedOnClients()}, listener)
    assert measured.metrics == {"score_0": 0.5, "score_2": 0.5}
    (note,) = (event for event in listener.events if isinstance(event, NoteEvent))
    assert "client 1" in note.text and "a bug" in note.text
    assert note.details == {"trace": "Traceback ..."}


def test_if_no_client_was_evaluated_there_is_nothing_to_summarise(tmp_path: Path) -> None:
    assert measure(tmp_path, Canned(fail("lost")), {"own": FixedOnClients()}).metrics == {}


def test_a_state_that_cannot_be_read_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the state is broken"):
        measure(tmp_path, Canned(fail("disk", "the state is broken")), {"own": FixedOnClients()})


def test_every_evaluated_client_is_an_event(tmp_path: Path) -> None:
    listener = Listener()
    measure(tmp_path, Canned(score(0.5)), {"own": FixedOnClients()}, listener)
    events = [event for event in listener.events if isinstance(event, ClientEvent)]
    assert [(event.done, event.cohort, event.activity) for event in events] == [
        (done, 3, "testing") for done in (1, 2, 3)
    ]


def test_without_a_global_model_everyone_tests_its_own_and_the_spread_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_global_model(monkeypatch)
    answer = by_client({1: score(0.2, "fixed"), 2: score(0.6, "fixed"), 0: score(0.4, "fixed")})
    executor = Canned(answer, tests={})  # it takes no test samples of one's own
    measured = measure(tmp_path, executor, {"fixed": Fixed()})
    assert executor.asked("evaluate") == [1, 2, 0]
    assert "evaluated" not in executor.tasks[0].down
    assert measured.metrics["score"] == pytest.approx(0.4)
    assert measured.metrics["score_std"] == pytest.approx((0.08 / 3) ** 0.5)


def test_what_personal_models_are_made_of_is_sent_beside_the_global_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = make_player(tmp_path, Canned())
    assert list(evaluation_payload(player.parts, SERVER, position()).tensors) == ["evaluated"]
    monkeypatch.setattr(Toy, "personal", lambda self, ctx, down, state: None)
    both = evaluation_payload(player.parts, SERVER, position())
    assert value(both) == value(both, "evaluated") == 4.0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_left_out_with_a_note(number: float, tmp_path: Path) -> None:
    listener = Listener()
    evaluators = {"good": Fixed("good"), "odd": Fixed("odd", number)}
    measured = measure(tmp_path, Canned(), evaluators, listener, index=3)
    assert measured.metrics == {"good": 0.5}
    (note,) = listener.notes
    assert "round 4" in note and "odd" in note


def test_targets_for_a_metric_that_nobody_measures_leave_a_note(tmp_path: Path) -> None:
    listener = Listener()
    evaluators = {"fixed": Fixed()}
    measure(tmp_path, Canned(), evaluators, listener, metric="accuracy", targets=(0.5,))
    (note,) = listener.notes
    assert "'accuracy'" in note and "score" in note
    measure(tmp_path, Canned(), evaluators, listener, metric="score", targets=(0.5,))
    measure(tmp_path, Canned(), evaluators, listener, metric="accuracy")
    assert len(listener.notes) == 1


def test_an_evaluator_warns_once_in_a_run(tmp_path: Path) -> None:
    listener = Listener()
    player = make_player(tmp_path, Canned(), listener, evaluators={"fixed": Fixed(value=-1.0)})
    evaluation = Evaluation(EvaluateSettings(), NO_DATA)
    for index in range(3):
        evaluation.measure(player, position(index), SERVER, Attempt())
    (note,) = listener.notes
    assert "round 1" in note and "a low score" in note


LATE: dict[str, Any] = {
    "fixed": Fixed(),
    "own": FixedOnClients(),
    "program": Program(),
    "always": Fixed("always"),
}


def test_evaluators_that_wait_for_the_last_round_run_in_no_other(tmp_path: Path) -> None:
    def answer(task: Task) -> Reply:
        return work(task) if task.op == "update" else score(0.5)(task)

    names, executor = ("fixed", "own", "program"), Canned(answer)
    before = measure(tmp_path, executor, LATE, index=8, last=names)
    assert before.metrics == {"always": 0.5} and not executor.tasks
    last = measure(tmp_path, executor, LATE, index=9, last=names)
    assert last.metrics.keys() >= {"always", "score", "score_0", "program"}
    assert last.metrics == measure(tmp_path, executor, LATE, index=9).metrics


def test_a_federated_evaluator_is_played_over_all_clients_and_reported_apart(
    tmp_path: Path,
) -> None:
    listener, executor = Listener(), Canned()
    measured = measure(tmp_path, executor, {"program": Program(rounds=2)}, listener)
    assert executor.asked("update") == [1, 2, 0, 1, 2, 0]
    assert {task.program for task in executor.tasks} == {"program"}
    assert [task.round.step for task in executor.tasks] == [0] * 3 + [1] * 3
    assert {task.round.steps for task in executor.tasks} == {2}
    assert measured.metrics == {"program": pytest.approx(4 + 2 * 70 / 60)}
    assert (measured.bytes_down, measured.bytes_up) == (2 * 3 * 4, 2 * 3 * 4)
    assert not listener.events


def test_the_draws_of_a_federated_evaluator_differ_from_round_to_round(tmp_path: Path) -> None:
    seeds = set()
    for index in (0, 1):
        executor = Canned()
        measure(tmp_path, executor, {"program": Program()}, index=index)
        seeds |= {task.round.seed for task in executor.tasks}
    assert len(seeds) == 2 and position().seed not in seeds


def test_a_federated_evaluator_without_an_answer_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"'program'.*client 1: lost: gone"):
        measure(tmp_path, Canned(fail("lost", "gone")), {"program": Program()})


def test_a_federated_evaluator_that_sends_the_model_needs_a_global_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_global_model(monkeypatch)
    with pytest.raises(ConfigError, match=r"Toy.*evaluate\.with"):
        measure(tmp_path, Canned(), {"program": Program()})


def test_clients_prepare_before_the_first_round_of_a_program_that_asks_for_it(
    tmp_path: Path,
) -> None:
    listener = Listener()
    executor = Canned(by_client({2: fail("failed", "a bug")}))
    measured = measure(tmp_path, executor, {"prepared": PreparedProgram()}, listener)
    assert executor.asked("evaluate") == [1, 2, 0]
    assert executor.asked("update") == [1, 0]  # who could not prepare takes no part
    first = executor.tasks[0]
    assert first.program == "prepared" and value(first.down, "evaluated") == 4.0
    assert measured.bytes_down == 3 * 4 + 2 * 4
    (note,) = listener.notes
    assert "client 2" in note


def test_a_program_with_preparation_takes_clients_own_models_where_there_is_no_global_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_global_model(monkeypatch)
    executor = Canned()
    measured = measure(tmp_path, executor, {"prepared": PreparedProgram()})
    first = executor.tasks[0]
    assert "evaluated" not in first.down and value(first.down) == 4.0
    assert "prepared" in measured.metrics


def test_a_program_for_own_models_is_sent_what_they_are_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "personal", lambda self, ctx, down, state: down["model"])
    monkeypatch.setattr(PreparedProgram, "own_models", True)
    executor = Canned()
    measure(tmp_path, executor, {"prepared": PreparedProgram()})
    assert {"model", "evaluated"} == set(executor.tasks[0].down.tensors)


def test_what_each_client_measured_is_kept_by_its_name(tmp_path: Path) -> None:
    measured = measure(tmp_path, Canned(SCORES), {"own": FixedOnClients()})
    assert measured.clients == {"0": {"score": 0.0}, "1": {"score": 0.1}, "2": {"score": 0.2}}
    odd = by_client({0: score(float("nan")), 1: fail("late"), 2: score(0.2)})
    measured = measure(tmp_path, Canned(odd), {"own": FixedOnClients()})
    assert measured.clients == {"0": {}, "2": {"score": 0.2}}


def test_clients_models_on_the_global_data_do_not_hide_their_values_on_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_global_model(monkeypatch)
    metrics = {"own/score": 0.75, "fixed/score": 0.25}
    executor = Canned(lambda task: Reply(task.client, examples=1, metrics=metrics))
    measured = measure(tmp_path, executor, {"fixed": Fixed(), "own": FixedOnClients()})
    assert measured.clients["1"] == {"score": 0.75, "global_score": 0.25}
