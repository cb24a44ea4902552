"""The rounds of a run as a sequence and as series."""

from pathlib import Path

import pytest

from coterie.core.errors import CheckpointError, ConfigError
from coterie.engine.record import RoundEvent
from coterie.experiment.history import History, read_history


def event(round: int, **metrics: float) -> RoundEvent:
    return RoundEvent(round, "train", [0], {}, {}, False, metrics, 1, 1, 0, 0, 0.1, "d", "s")


EVENTS = (event(0, loss=2.0), event(1, loss=1.5, accuracy=0.5), event(2, accuracy=0.9561))


def test_it_is_a_sequence_of_rounds() -> None:
    history = History(EVENTS)
    assert len(history) == 3 and list(history) == list(EVENTS)
    assert history[-1] is EVENTS[2] and EVENTS[1] in history
    assert history[1:] == History(EVENTS[1:])


def test_a_name_gives_the_course_of_a_metric() -> None:
    assert History(EVENTS)["accuracy"] == [(1, 0.5), (2, 0.9561)]
    assert History(EVENTS)["loss"] == [(0, 2.0), (1, 1.5)]


def test_an_unknown_metric_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="'acuracy' was not measured; did you mean 'accuracy'"):
        History(EVENTS)["acuracy"]
    with pytest.raises(ConfigError, match="'knn' was not measured; there are: accuracy, loss"):
        History(EVENTS)["knn"]
    with pytest.raises(ConfigError, match="there are: none"):
        History()["accuracy"]


@pytest.mark.parametrize(
    ("history", "shown"),
    [
        (History(EVENTS), "History(3 rounds, accuracy 0.956 after the last)"),
        (History(EVENTS[:1]), "History(1 round)"),
        (History(EVENTS, "loss"), "History(3 rounds)"),
        (History(), "History(no rounds)"),
    ],
)
def test_it_is_shown_in_one_line(history: History, shown: str) -> None:
    assert repr(history) == shown


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    assert read_history(tmp_path, "accuracy") == History()
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(event.line() for event in EVENTS) + EVENTS[0].line()[:30])
    assert read_history(tmp_path, "loss") == History(EVENTS, "loss")
    file.write_text("nonsense\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be read"):
        read_history(tmp_path, "accuracy")
