"""Events and `metrics.jsonl`: what is written is read, and uncommitted lines go."""

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.core.errors import CheckpointError
from coterie.engine.record import (
    MetricsFile,
    RoundEvent,
    bytes_until,
    reached,
    recall_by_class,
)


def event(round: int, **changes: object) -> RoundEvent:
    plain = RoundEvent(
        round=round,
        stage="train",
        cohort=[3, 1],
        lost={"7": "late: no answer in 5 s"},
        rejected={"1": "model/w holds nan"},
        skipped=False,
        metrics={"accuracy": 0.1 * round, "train_loss": 2.5},
        bytes_up=100,
        bytes_down=50,
        evaluation_bytes_up=7,
        evaluation_bytes_down=9,
        seconds=0.25,
        digest="d" * 64,
        states="e" * 64,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    "one",
    [
        event(0),
        event(1, stage="a\u2028b\n\x85 é", cohort=[], lost={}, rejected={}, metrics={}),
        event(1, clients={"a": {"accuracy": 0.5}}, unseen=["a"], client_confusion={"a": [[1]]}),
        event(1, confusion=[[3, 1], [0, 0]], recall={"ill": 0.75}),
        event(2, metrics={"loss": float("inf"), "tiny": 5e-324, "third": 1 / 3}),
    ],
)
def test_an_event_comes_back(one: RoundEvent, metrics: MetricsFile) -> None:
    metrics.append(one)
    metrics.append(one)
    assert metrics.read() == [one, one]
    assert RoundEvent.parse(one.line()) == one
    assert one.line().count("\n") == 1
    assert one.line().endswith("\n")


def test_the_outline_of_an_event_has_no_clients() -> None:
    whole = event(4, clients={"a": {"accuracy": 0.5}}, unseen=["a"], client_confusion={"a": [[1]]})
    assert whole.outline() == event(4, cohort=[], lost={}, rejected={})


def test_a_line_names_what_only_some_rounds_have_where_they_have_it() -> None:
    assert (
        not {"unseen", "confusion", "recall", "client_confusion"}
        & json.loads(event(0).line()).keys()
    )
    assert json.loads(event(0, confusion=[[1]]).line())["confusion"] == [[1]]


def test_a_line_of_an_older_version_is_read() -> None:
    older = json.loads(event(3).line())
    del older["clients"]
    assert RoundEvent.parse(json.dumps(older)) == event(3)


def test_recall_is_the_share_of_a_row_and_unknown_without_samples() -> None:
    assert recall_by_class([[3, 1, 0], [0, 0, 0], [2, 0, 0]]) == [0.75, None, 0.0]


def test_lines_are_json(metrics: MetricsFile) -> None:
    metrics.append(event(4))
    assert json.loads(metrics.path.read_text())["rejected"] == {"1": "model/w holds nan"}


def test_no_file_no_events(metrics: MetricsFile) -> None:
    assert metrics.read() == []
    assert metrics.read(committed=0) == []


def test_the_committed_part_is_read_alone(metrics: MetricsFile) -> None:
    metrics.append(event(0))
    size = metrics.path.stat().st_size
    metrics.append(event(1))
    assert [one.round for one in metrics.read(size)] == [0]


@pytest.mark.parametrize("rest", ['{"round": 1, "sta', "[]\n", '{"round": 1}\n', "\xff\n", "\0\0"])
def test_a_torn_or_foreign_line_is_named(rest: str, metrics: MetricsFile) -> None:
    metrics.append(event(0))
    size = metrics.path.stat().st_size
    with metrics.path.open("ab") as file:
        file.write(rest.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be read"):
        metrics.read()
    assert metrics.read(size) == [event(0)]
    metrics.truncate(size)
    assert metrics.read() == [event(0)]


def test_sync_gives_length_and_hash(metrics: MetricsFile) -> None:
    for round in range(3):
        metrics.append(event(round))
    data = metrics.path.read_bytes()
    assert metrics.sync(3) == (len(data), hashlib.sha256(data).hexdigest())
    assert metrics.path.read_bytes() == data


def test_sync_drops_what_is_beyond_the_finished_rounds(metrics: MetricsFile) -> None:
    metrics.append(event(0))
    data = metrics.path.read_bytes()
    metrics.append(event(1))
    with metrics.path.open("a") as file:
        file.write('{"torn')
    assert metrics.sync(1) == (len(data), hashlib.sha256(data).hexdigest())
    assert metrics.path.read_bytes() == data
    metrics.append(event(5))
    assert [one.round for one in metrics.read()] == [0, 5]


def test_sync_of_nothing(metrics: MetricsFile) -> None:
    assert metrics.sync(0) == (0, hashlib.sha256(b"").hexdigest())
    assert metrics.read() == []


def test_sync_reaches_the_disk(metrics: MetricsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.append(event(0))
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink())
    )
    metrics.sync(1)
    assert synced == [metrics.path]


def test_a_full_disk_is_named(metrics: MetricsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    metrics.append(event(0))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: No space left.*--resume"):
        metrics.sync(1)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    for act in (
        lambda: metrics.append(event(0)),
        lambda: metrics.sync(1),
        lambda: metrics.truncate(0),
    ):
        with pytest.raises(CheckpointError, match="Is a directory"):
            act()


def test_a_link_is_refused_and_what_it_points_to_is_left(metrics: MetricsFile) -> None:
    target = metrics.path.with_name("precious")
    target.write_text("text")
    metrics.path.symlink_to(target)
    for act in (
        lambda: metrics.append(event(0)),
        lambda: metrics.sync(0),
        lambda: metrics.truncate(0),
        lambda: metrics.restore(b""),
    ):
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a symbolic link"):
            act()
    assert target.read_text() == "text"


def test_restoring_brings_back_the_committed_lines_and_says_if_they_were_damaged(
    metrics: MetricsFile,
) -> None:
    metrics.append(event(0))
    data = metrics.path.read_bytes()
    metrics.append(event(1))
    assert not metrics.restore(data) and metrics.path.read_bytes() == data
    for damaged in (b"", data[:-1], b"x" + data[1:]):
        metrics.path.write_bytes(damaged)
        assert metrics.restore(data) and metrics.path.read_bytes() == data
    metrics.path.unlink()
    assert metrics.restore(data) and metrics.read() == [event(0)]
    assert not metrics.restore(b"") and metrics.read() == []


def test_reached() -> None:
    history = [event(0, metrics={"accuracy": float("nan")}), event(1, metrics={})]
    history += [event(round) for round in range(2, 8)]
    assert reached(history, "accuracy", 0.4) is history[4]
    assert reached(history, "accuracy", 0.9) is None
    assert reached(history, "unknown", 0.0) is None
    assert reached([], "accuracy", 0.0) is None


def test_bytes_until_leave_evaluation_out() -> None:
    history = [event(round) for round in range(4)]
    assert bytes_until(history, history[2]) == 3 * 150


def test_a_line_from_before_there_were_values_by_client_is_read() -> None:
    line = json.loads(event(3).line())
    assert line.pop("clients") == {}
    assert RoundEvent.parse(json.dumps(line)) == event(3)
    one = event(3, clients={"north": {"accuracy": 0.5}})
    assert RoundEvent.parse(one.line()) == one
