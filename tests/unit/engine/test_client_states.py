"""Clients' states: versions by round and attempt, and how long each of them is kept."""

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CheckpointError
from coterie.core.task import Attempt
from coterie.engine.client_states import StateStore


def state(value: float) -> Bundle:
    return Bundle({"model": {"w": torch.tensor([value])}})


def value(found: Bundle | None) -> float | None:
    return None if found is None else found["model"]["w"].item()


def versions(store: StateStore, client: int) -> list[str]:
    folder = store.folder / str(client)
    return sorted(path.name.removesuffix(".safetensors") for path in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "clients")


def test_nothing_was_saved(store: StateStore) -> None:
    assert store.load(3, 10) is None


def test_the_newest_below(store: StateStore) -> None:
    everything = Attempt(kept=tuple(range(20)))
    for round in (2, 5, 11):
        store.save(7, round, everything, state(round))
    found = {below: value(store.load(7, below)) for below in (0, 2, 3, 5, 6, 11, 12, 99)}
    assert found == {0: None, 2: None, 3: 2, 5: 2, 6: 5, 11: 5, 12: 11, 99: 11}
    assert store.load(8, 99) is None


def test_rounds_are_compared_as_numbers(store: StateStore) -> None:
    for round in (999_999, 1_000_000):
        store.save(0, round, Attempt(kept=(999_999,)), state(round))
    assert value(store.load(0, 2_000_000)) == 1_000_000


def test_a_task_that_is_done_again_reads_the_same(store: StateStore) -> None:
    store.save(1, 4, Attempt(), state(4))
    for _ in range(3):
        assert value(store.load(1, 6)) == 4
        store.save(1, 6, Attempt(), state(6))
    assert value(store.load(1, 7)) == 6


def test_a_later_attempt_of_a_round_is_newer(store: StateStore) -> None:
    for attempt in (1, 9, 10):
        store.save(1, 4, Attempt(attempt, kept=(3,)), state(attempt))
    assert value(store.load(1, 5)) == 10


def test_pruning_keeps_what_a_kept_checkpoint_needs(store: StateStore) -> None:
    for round in range(8):
        store.save(1, round, Attempt(kept=(2, 5)), state(round))
    assert versions(store, 1) == ["000002.1", "000005.1", "000006.1", "000007.1"]


def test_without_checkpoints_only_the_last_two_stay(store: StateStore) -> None:
    for round in (0, 3, 4, 9):
        store.save(1, round, Attempt(), state(round))
    assert versions(store, 1) == ["000004.1", "000009.1"]


def test_pruning_leaves_other_clients_and_later_rounds(store: StateStore) -> None:
    store.save(2, 0, Attempt(), state(0))
    store.save(1, 9, Attempt(), state(9))
    for round in range(4):
        store.save(1, round, Attempt(), state(round))
    assert versions(store, 2) == ["000000.1"]
    assert versions(store, 1) == ["000002.1", "000003.1", "000009.1"]


@pytest.mark.parametrize("seed", range(6))
def test_every_kept_checkpoint_can_be_returned_to(store: StateStore, seed: int) -> None:
    """A long run with checkpoints, skipped clients and set-backs, against a plain history."""
    chance = random.Random(seed)
    checkpoints: list[int] = []
    history: dict[int, float] = {}  # round -> what the client remembered after it
    attempt, first, round = 1, 0, 0
    store.begin(Attempt(attempt, first))
    for _ in range(60):
        kept = Attempt(attempt, first, tuple(checkpoints))
        if chance.random() < 0.5:
            expected = value(store.load(1, round))
            history[round] = 1000.0 * attempt + round
            store.save(1, round, kept, state(history[round]))
            assert value(store.load(1, round)) == expected
        if round % 3 == 2:
            checkpoints = [*checkpoints, round][-2:]
        for checkpoint in checkpoints:
            newest = max((t for t in history if t <= checkpoint), default=None)
            wanted = None if newest is None else history[newest]
            assert value(store.load(1, checkpoint + 1)) == wanted
        if checkpoints and chance.random() < 0.15:
            back = chance.choice(checkpoints)
            checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint <= back]
            history = {t: v for t, v in history.items() if t <= back}
            attempt, first, round = attempt + 1, back + 1, back
            store.begin(Attempt(attempt, first))
        round += 1
    assert len(versions(store, 1)) <= 4


def test_begin_drops_what_earlier_attempts_left_uncommitted(store: StateStore) -> None:
    everything = tuple(range(9))
    for client in (0, 1):
        for round in (1, 3, 5):
            store.save(client, round, Attempt(1, 0, everything), state(round))
    store.save(0, 3, Attempt(2, 2, everything), state(30))
    store.begin(Attempt(2, 3))
    assert versions(store, 0) == ["000001.1", "000003.2"]
    assert versions(store, 1) == ["000001.1"]


def test_begin_is_safe_to_repeat_while_others_work(store: StateStore) -> None:
    store.begin(Attempt(2, 0))
    store.save(0, 5, Attempt(2, 4), state(5))
    store.begin(Attempt(2, 4))
    assert value(store.load(0, 6)) == 5


def test_forget(store: StateStore) -> None:
    store.save(0, 1, Attempt(), state(1))
    store.save(1, 1, Attempt(), state(1))
    store.forget(0)
    store.forget(5)
    assert store.load(0, 9) is None
    assert value(store.load(1, 9)) == 1


def test_blobs_are_refused(store: StateStore, tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "b", [np.ones(2)])
    with pytest.raises(TypeError, match="no blobs"):
        store.save(0, 0, Attempt(), Bundle(blobs={"x": blob}))
    assert store.load(0, 9) is None


def test_a_damaged_state_is_an_error_that_names_it(store: StateStore) -> None:
    store.save(3, 1, Attempt(), state(1))
    path = store.folder / "3" / "000001.1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"the state of client 3 at .*000001\.1"):
        store.load(3, 2)


def test_no_problem_with_what_was_saved(store: StateStore) -> None:
    store.save(0, 1, Attempt(), state(1))
    store.save(0, 2, Attempt(1, 0, (1,)), state(2))
    digests = {round: state(round).digest() for round in (1, 2)}
    assert store.find_problem({}, last=2) is None
    assert store.find_problem({0: (1, digests[1])}, last=1) is None
    assert store.find_problem({0: (2, digests[2])}, last=2) is None


def test_problems_are_noticed(store: StateStore) -> None:
    store.save(0, 1, Attempt(), state(1))
    expected = {0: (1, state(1).digest())}
    path = store.folder / "0" / "000001.1.safetensors"
    whole = path.read_bytes()
    assert "has no state of round 2" in store.find_problem({0: (2, state(1).digest())}, last=2)
    assert "has no state of round 1" in store.find_problem({**expected, 4: (1, "")}, last=1)
    assert "does not have the digest" in store.find_problem({0: (1, state(2).digest())}, last=1)
    for position in range(0, len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        problem = store.find_problem(expected, last=1)
        assert problem is not None or whole[position : position + 1].isspace()
    for damaged in (b"", whole[:-1], whole + b"\0"):
        path.write_bytes(damaged)
        assert store.find_problem(expected, last=1) is not None
    path.unlink()
    assert "has no state of round 1" in store.find_problem(expected, last=1)
    path.mkdir()
    assert store.find_problem(expected, last=1) is not None


def test_a_full_disk_leaves_the_old_version_and_no_rest(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(0, 1, Attempt(), state(1))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"clients/0/000002.*No space left.*bytes needed"):
            store.save(0, 2, Attempt(), state(2))
    assert versions(store, 0) == ["000001.1"]
    assert value(store.load(0, 9)) == 1


def test_a_folder_that_cannot_be_made_is_an_error_of_the_disk(store: StateStore) -> None:
    store.folder.mkdir()
    (store.folder / "0").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*clients/0"):
        store.save(0, 1, Attempt(), state(1))


def test_a_state_whose_reply_was_lost_does_not_break_the_checkpoints(store: StateStore) -> None:
    store.save(0, 3, Attempt(), state(3))
    told = {0: (3, state(3).digest())}  # the reply of round 4 never came, its state was saved
    store.save(0, 4, Attempt(1, 0, (3,)), state(4))
    store.save(0, 5, Attempt(1, 0, (4,)), state(5))
    assert store.find_problem(told, last=4) is None
    assert store.load(0, below=5).digest() == state(4).digest()


STRANGE = ("\u00b2", "\u0663", "07", "-1", "notes", "1 ")  # none of them is written for a client
NO_VERSIONS = (
    *("a.b.safetensors", "safetensors", "000001.safetensors", "000001.1.2.safetensors"),
    *("\u0663\u0663\u0663\u0663\u0663\u0663.1.safetensors", "0000001.1.safetensors"),
    *("000009.01.safetensors", "000009.+1.safetensors", "000009.1.safetensors.old"),
)


def test_what_is_no_state_is_ignored_and_listed(store: StateStore) -> None:
    store.save(1, 1, Attempt(), state(1))
    for name in STRANGE:
        (store.folder / name).mkdir()
        (store.folder / name / "000001.9.safetensors").touch()
    for name in NO_VERSIONS:
        (store.folder / "1" / name).touch()
    (store.folder / "3").touch()  # a file
    store.begin(Attempt(2, 5))
    assert store.clients() == [1] and store.last_attempt() == 1
    assert value(store.load(1, 99)) == 1
    store.save(1, 2, Attempt(), state(2))
    assert value(store.load(1, 99)) == 2
    expected = {store.folder / name for name in (*STRANGE, "3")}
    expected |= {store.folder / "1" / name for name in NO_VERSIONS}
    assert set(store.list_unknown()) == expected
    assert all(path.exists() for path in expected)
    assert store.find_problem({1: (2, state(2).digest())}, 2, exact=True) is None


def test_large_numbers_are_no_problem(store: StateStore) -> None:
    round, attempt = 2**40, 2**33
    store.save(1, round, Attempt(attempt), state(1))
    assert value(store.load(1, round + 1)) == 1 and store.last_attempt() == attempt
    assert store.find_problem({1: (round, state(1).digest())}, round, exact=True) is None


def test_the_digest_of_a_state_is_that_of_its_round(store: StateStore) -> None:
    store.save(1, 3, Attempt(), state(3))
    assert store.find_digest(1, 3) == state(3).digest()
    assert store.find_digest(1, 4) is None and store.find_digest(2, 3) is None


def test_a_state_that_is_not_known_is_a_problem_where_all_are(store: StateStore) -> None:
    store.save(1, 3, Attempt(), state(3))
    told = {1: (3, state(3).digest())}
    store.save(1, 4, Attempt(1, 0, (3,)), state(4))
    assert store.find_problem(told, last=4) is None
    assert "000004.1.safetensors is not known" in str(store.find_problem(told, 4, exact=True))
    assert store.find_problem(told, last=3, exact=True) is None
    assert "is not known to the checkpoint" in str(store.find_problem({}, 4, exact=True))
