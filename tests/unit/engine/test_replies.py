"""The replies of one round: who is lost, who is rejected, what is counted and measured."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from canned import SIZES, WEIGHT, Listener, model, position

from coterie.core.bundle import Bundle
from coterie.core.errors import CheckpointError
from coterie.core.task import Failure, Reply
from coterie.engine.cohort import Invited
from coterie.engine.record import ClientEvent, NoteEvent, Recorders
from coterie.engine.replies import Replies, combine_digests
from coterie.kit import Mean
from coterie.kit.aggregate import Screen
from coterie.kit.expect import expect

DOWN, RULES = model(1.0), {"model": Mean()}


def screener(down: Bundle) -> Screen:
    return Screen(expect(down, RULES, {}, {}))


def good(client: int, **changes: object) -> Reply:
    return replace(Reply(client, model(client), SIZES[client]), **changes)


def failed(client: int, kind: str, reason: str = "a reason", trace: str = "") -> Reply:
    return Reply(client, error=Failure(kind, reason, trace))  # type: ignore[arg-type]


def screen(
    answers: Sequence[Reply],
    invited: Invited | None = None,
    listener: Listener | None = None,
    down: Bundle = DOWN,
) -> tuple[Replies, list[int]]:
    """The replies of a round after all were screened, and who was passed on."""
    invited = invited or Invited(tuple(reply.client for reply in answers))
    replies = Replies(position(3), invited, Recorders([listener] if listener else []))
    return replies, [reply.client for reply in replies.screen(iter(answers), down, screener(down))]


def test_valid_replies_are_passed_on_in_their_order() -> None:
    replies, passed = screen([good(1), good(0), good(2)])
    assert passed == replies.valid == [1, 0, 2]
    assert not replies.lost and not replies.rejected


def test_one_reply_is_taken_at_a_time() -> None:
    taken: list[int] = []

    def answers() -> Iterator[Reply]:
        for client in SIZES:
            taken.append(client)
            yield good(client)

    screened = Replies(position(), Invited(tuple(SIZES)), Recorders()).screen(
        answers(), DOWN, screener(DOWN)
    )
    assert not taken
    next(screened)
    assert taken == [0]


@pytest.mark.parametrize("kind", ["lost", "late", "skipped"])
def test_a_client_that_could_not_answer_is_lost(kind: str) -> None:
    replies, passed = screen([failed(0, kind, "no wire"), good(1)])
    assert passed == [1]
    assert replies.lost == {"0": f"{kind}: no wire"}
    assert not replies.rejected


@pytest.mark.parametrize("kind", ["diverged", "failed"])
def test_a_client_whose_work_failed_is_rejected(kind: str) -> None:
    replies, passed = screen([failed(0, kind, "no luck"), good(1)])
    assert passed == [1]
    assert replies.rejected == {"0": f"{kind}: no luck"}
    assert not replies.lost


def test_a_reply_that_does_not_look_like_the_broadcast_is_rejected() -> None:
    wide = Bundle({"model": {WEIGHT: torch.zeros(2)}})
    replies, passed = screen([good(0, up=wide), good(1)])
    assert passed == [1]
    assert WEIGHT in replies.rejected["0"]


def test_a_state_that_could_not_be_saved_ends_the_run() -> None:
    with pytest.raises(CheckpointError, match="the disk is full"):
        screen([failed(0, "disk", "the disk is full")])


def test_a_client_that_is_dropped_before_the_round_is_lost_without_being_asked() -> None:
    replies, _ = screen([good(1)], Invited((1, 0), {0: "before"}))
    assert replies.asked == [1]
    assert list(replies.lost) == ["0"]
    assert replies.bytes_down == DOWN.nbytes()


def test_a_client_that_is_dropped_after_its_work_received_bytes_and_sent_none() -> None:
    digest = "0" * 64
    replies, passed = screen([good(0, state=digest), good(1)], Invited((0, 1), {0: "after"}))
    assert passed == [1]
    assert list(replies.lost) == ["0"]
    assert replies.bytes_down == 2 * DOWN.nbytes()
    assert replies.bytes_up == good(1).up.nbytes()
    assert replies.states == {0: (3, digest)}  # it saved its state all the same


def test_the_bytes_of_a_rejected_upload_were_sent() -> None:
    wide = Bundle({"model": {WEIGHT: torch.zeros(100)}})
    replies, _ = screen([good(0, up=wide)])
    assert replies.bytes_up == wide.nbytes()


def test_what_single_clients_are_sent_is_counted_beside_the_broadcast() -> None:
    own = Bundle(scalars={"x": 1})
    replies = Replies(position(), Invited((0, 1)), Recorders())
    replies.count_own(own)
    replies.count_own(None)
    list(replies.screen(iter([good(0), good(1)]), DOWN, screener(DOWN)))
    assert replies.bytes_down == own.nbytes() + 2 * DOWN.nbytes()


def test_metrics_are_weighted_by_the_samples_of_those_who_measured_them() -> None:
    replies, _ = screen(
        [
            good(0, metrics={"loss": 1.0, "rare": 4.0}),
            good(1, metrics={"loss": 3.0}),
            good(2),
        ]
    )
    n = SIZES
    assert replies.metrics() == {
        "train_loss": (n[0] * 1.0 + n[1] * 3.0) / (n[0] + n[1]),
        "train_rare": 4.0,
    }


def test_metrics_of_the_server_stand_beside_those_of_clients() -> None:
    replies, _ = screen([good(0, metrics={"loss": 2.0})])
    replies.server_metrics["loss"] = 5.0
    assert replies.metrics() == {"train_loss": 2.0, "server_loss": 5.0}


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1, "high"])
def test_a_metric_that_is_no_finite_float_is_left_out_with_a_note(odd: object) -> None:
    listener = Listener()
    replies, passed = screen([good(0, metrics={"odd": odd, "loss": 1.0})], listener=listener)
    assert passed == [0]
    assert replies.metrics() == {"train_loss": 1.0}
    (note,) = listener.notes
    assert "client 0" in note and "odd" in note and "round 4" in note


def test_metrics_of_rejected_and_lost_clients_do_not_count() -> None:
    wide = Bundle({"model": {WEIGHT: torch.zeros(2)}})
    answers = [good(0, up=wide, metrics={"loss": 9.0}), good(1, metrics={"loss": 8.0})]
    replies, _ = screen(
        [*answers, good(2, metrics={"loss": 1.0})], Invited((0, 1, 2), {1: "after"})
    )
    assert replies.metrics() == {"train_loss": 1.0}


def test_the_digests_of_saved_states_are_kept_with_the_round() -> None:
    replies, _ = screen([good(0, state="aa"), good(1), replace(failed(2, "late"), state="cc")])
    assert replies.states == {0: (3, "aa"), 2: (3, "cc")}


def test_the_digest_of_all_states_does_not_depend_on_the_order_of_clients() -> None:
    states = {0: (3, "aa"), 1: (2, "bb")}
    backwards = dict(reversed(states.items()))
    assert combine_digests(states) == combine_digests(backwards)
    assert combine_digests(states) != combine_digests({0: (3, "aa"), 1: (3, "bb")})


def test_all_have_diverged_only_if_one_did_and_nobody_is_left() -> None:
    assert screen([failed(0, "diverged"), failed(1, "lost")])[0].all_diverged()
    assert not screen([failed(0, "diverged"), good(1)])[0].all_diverged()
    assert not screen([failed(0, "lost")])[0].all_diverged()
    assert not screen([])[0].all_diverged()


def test_the_first_problem_is_a_rejected_client_then_a_lost_one_then_the_servers() -> None:
    lost, rejected = failed(0, "lost", "gone"), failed(1, "failed", "a bug")
    assert screen([lost, rejected])[0].first_problem() == "client 1: failed: a bug"
    assert screen([lost])[0].first_problem() == "client 0: lost: gone"
    replies, _ = screen([good(0)])
    replies.trouble = "no valid reply"
    assert replies.first_problem() == "no valid reply"


def test_a_failure_with_a_traceback_leaves_a_note_that_carries_it() -> None:
    listener = Listener()
    screen([failed(0, "failed", "a bug", "Traceback ..."), failed(1, "lost")], listener=listener)
    (note,) = (event for event in listener.events if isinstance(event, NoteEvent))
    assert "client 0" in note.text and "a bug" in note.text
    assert note.details == {"trace": "Traceback ..."}


def test_every_answer_is_an_event_whatever_it_says() -> None:
    listener = Listener()
    invited = Invited((0, 1, 2), {2: "before"})
    screen([failed(0, "late"), good(1)], invited, listener)
    events = [event for event in listener.events if isinstance(event, ClientEvent)]
    assert [(event.round, event.done, event.cohort) for event in events] == [(3, 1, 2), (3, 2, 2)]


def test_the_time_of_every_answer_is_kept() -> None:
    replies, _ = screen([good(0, seconds=2.0), replace(failed(1, "late"), seconds=5.0)])
    assert replies.seconds == {0: 2.0, 1: 5.0}


def test_an_upload_that_was_refused_undecoded_is_rejected_and_counted() -> None:
    error = Failure("refused", "model/w is float64 [1], not float32 [1]", nbytes=8)
    replies, passed = screen([Reply(0, error=error, state="0" * 64), good(1)])
    assert passed == [1]
    assert replies.rejected == {"0": error.reason}
    assert replies.bytes_up == 8 + good(1).up.nbytes()
    assert replies.states == {0: (3, "0" * 64)}


def test_an_upload_that_was_refused_and_lost_was_not_sent() -> None:
    error = Failure("refused", "a reason", nbytes=8)
    replies, _ = screen([Reply(0, error=error)], Invited((0,), {0: "after"}))
    assert list(replies.lost) == ["0"] and not replies.rejected and replies.bytes_up == 0
