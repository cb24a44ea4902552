"""What several checkpoints rely on exists twice: one damaged file costs none of them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoints import (
    DAMAGE,
    blob_state,
    finish,
    flipped,
    held,
    newest_round,
    place,
    server,
)
from test_record import event

from coterie.core import codec
from coterie.core.errors import CheckpointError
from coterie.core.task import Attempt
from coterie.engine.checkpoints import CheckpointStore, Origin
from coterie.engine.client_states import StateStore
from coterie.engine.record import MetricsFile
from faulty_reads import BadSector, reading


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of rounds 0 and 1."""
    finish(tmp_path, 0)
    finish(tmp_path, 1)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("which", [Path(), Path("checkpoints/round_000001")])
def test_damaged_metrics_are_restored_from_the_checkpoint_and_the_other_way_round(
    which: Path, run: Path, damage: Callable[[Path], Any]
) -> None:
    lines = (run / "metrics.jsonl").read_bytes()
    damage(run / which / "metrics.jsonl")
    store = CheckpointStore(run)
    state, position, complaints = store.load_newest()
    assert (position.round, complaints) == (1, [])
    notes = list(store.mend(state, position))
    assert ["metrics.jsonl" in note for note in notes] == ([] if which.name else [True])
    for folder in (run, place(run, 1)):
        assert (folder / "metrics.jsonl").read_bytes() == lines


def test_metrics_that_are_damaged_everywhere_lead_to_the_checkpoint_before(run: Path) -> None:
    for folder in (run, place(run, 1)):
        flipped(1.0)(folder / "metrics.jsonl")
    assert newest_round(run) == 0


@pytest.mark.parametrize("damage", [flipped(0.5), DAMAGE["cut"], DAMAGE["gone"]])
def test_a_blob_that_is_damaged_with_its_copy_leads_to_the_checkpoint_before(
    run: Path, damage: Callable[[Path], Any]
) -> None:
    finish(run, 2, blob_state(run, 2, 1.0))
    for path in [*(run / "blobs").iterdir()]:
        damage(path)
    assert newest_round(run) == 1


@pytest.mark.parametrize("damage", [flipped(0.5), DAMAGE["cut"], DAMAGE["gone"]])
@pytest.mark.parametrize("suffix", ["", ".copy"])
def test_a_damaged_blob_costs_no_checkpoint(
    suffix: str, run: Path, damage: Callable[[Path], Any]
) -> None:
    finish(run, 2, blob_state(run, 2, 1.0))
    store = finish(run, 3, blob_state(run, 3, 1.0))
    (name,) = held(run)
    damage(run / "blobs" / f"{name}{suffix}")
    state, position, complaints = store.load_newest()
    assert (position.round, complaints) == (3, [])
    assert len(list(store.mend(state, position))) == (suffix == "")
    assert state.blobs["features"].is_intact()
    assert np.array_equal(state.blobs["features"].open(), np.ones((2, 3)))
    damage(run / "blobs" / name)
    assert suffix or store.load_newest()[1].round == 3  # the copy is still there


def finish_without(run: Path, round: int) -> CheckpointStore:
    """Commit a round in which the client took no part: its state is that of the round before."""
    store, metrics = CheckpointStore(run), MetricsFile(run / "metrics.jsonl")
    _, position, _ = store.load_newest()
    metrics.append(event(round))
    size, sha256 = metrics.sync(round + 1)
    metrics_now = {"metrics_bytes": size, "metrics_sha256": sha256}
    store.commit(server(round), replace(position, round=round, **metrics_now))
    return store


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_state_that_two_checkpoints_share_costs_none_of_them(
    run: Path, damage: Callable[[Path], Any]
) -> None:
    store = finish_without(run, 2)
    state = run / "clients" / "5" / "000001.1.safetensors"
    before = state.read_bytes()
    damage(state)
    loaded, position, complaints = store.load_newest()
    assert (position.round, complaints) == (2, [])
    (note,) = store.mend(loaded, position)
    assert str(state) in note and state.read_bytes() == before
    StateStore(run / "clients").save(5, 3, Attempt(1, 0, (3,)), server(3))
    names = {path.name for path in state.parent.iterdir()}
    assert names == {"000001.1.safetensors", "000001.1.safetensors.copy", "000003.1.safetensors"}
    StateStore(run / "clients").save(5, 4, Attempt(1, 0, (3,)), server(4))
    names = {path.name for path in state.parent.iterdir()}
    assert names == {"000003.1.safetensors", "000004.1.safetensors"}


@pytest.mark.parametrize("name", ["6/000000.1", "5/000002.1", "5/000001.9"])
def test_a_state_that_a_checkpoint_does_not_know_is_not_taken(run: Path, name: str) -> None:
    store = finish_without(run, 2)
    state, position, _ = store.load_newest()
    store.commit(state, replace(position, origin=Origin()))
    stray = run / "clients" / f"{name}.safetensors"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(codec.encode(server(9)))
    for round in (0, 1):
        shutil.rmtree(place(run, round), ignore_errors=True)
    with pytest.raises(CheckpointError, match=str(stray)):
        store.load_newest()


def test_a_run_that_was_moved_finds_its_blobs(run: Path, tmp_path: Path) -> None:
    finish(run, 2, blob_state(run, 2, 1.0))
    shutil.copytree(run, tmp_path / "moved" / "run")
    shutil.rmtree(run / "blobs")
    state, _, _ = CheckpointStore(tmp_path / "moved" / "run").load_newest()
    assert np.array_equal(state.blobs["features"].open(), np.ones((2, 3)))


def test_rounds_of_more_than_six_digits_are_in_order(run: Path) -> None:
    for round in (999_999, 1_000_000, 2**31, 10**20):
        place(run, round).mkdir()
    assert CheckpointStore(run).rounds() == [0, 1, 999_999, 1_000_000, 2**31, 10**20]


def test_nothing_is_removed_that_an_unreadable_checkpoint_may_refer_to(run: Path) -> None:
    finish(run, 2, blob_state(run, 2, 1.0))
    best = run / "checkpoints" / "best" / "round_000000.safetensors"
    best.parent.mkdir(exist_ok=True)
    best.touch()
    with reading(BadSector(0, (place(run, 2) / "server.safetensors",))) as fault:
        CheckpointStore(run).remove_unused_blobs(server(3))
    assert fault.path and held(run)
    with reading(BadSector(0, (place(run, 2) / "state.json",))) as fault:
        finish(run, 3)
    assert fault.path and best.exists()
    finish(run, 4)
    finish(run, 5)
    assert not held(run) and not best.exists()
