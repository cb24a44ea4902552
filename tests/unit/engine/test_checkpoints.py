"""Checkpoints: a whole one is found again, a broken one never is, a full disk costs nothing."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_record import event

from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CheckpointError
from coterie.core.task import Attempt
from coterie.engine.checkpoints import CheckpointStore, Origin, Position
from coterie.engine.client_states import StateStore
from coterie.engine.record import MetricsFile

FILES = ("server.safetensors", "state.json", "manifest.json")


def server(round: int) -> Bundle:
    return Bundle({"model": {"w": torch.full((3,), float(round))}}, {"round": round})


def finish(run: Path, round: int, state: Bundle | None = None, keep: int = 2) -> CheckpointStore:
    """Everything that the end of a round does: metrics, a client's state, the commit."""
    store, metrics = CheckpointStore(run, keep), MetricsFile(run / "metrics.jsonl")
    memory = Bundle({"memory": {"m": torch.tensor([float(round)])}})
    StateStore(run / "clients").save(5, round, Attempt(1, 0, tuple(store.rounds())), memory)
    metrics.append(event(round))
    size, sha256 = metrics.sync(round + 1)
    position = Position(
        round=round,
        skipped=1,
        states={5: (round, memory.digest())},
        metrics_bytes=size,
        metrics_sha256=sha256,
        environment={"torch": "9"},
    )
    store.commit(store.adopt_blobs(state or server(round)), position)
    return store


def newest_round(run: Path) -> int:
    found = CheckpointStore(run).load_newest()
    assert found is not None
    assert found[0]["model"]["w"].tolist() == [float(found[1].round)] * 3
    return found[1].round


def place(run: Path, round: int) -> Path:
    return run / "checkpoints" / f"round_{round:06d}"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of rounds 0 and 1."""
    finish(tmp_path, 0)
    finish(tmp_path, 1)
    return tmp_path


def test_an_empty_run(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.load_newest() is None
    assert store.rounds() == []


def test_a_checkpoint_comes_back(run: Path) -> None:
    state, position, complaints = CheckpointStore(run).load_newest()
    assert state.digest() == server(1).digest()
    assert complaints == []
    assert (position.round, position.skipped, position.finished) == (1, 1, False)
    assert position.environment == {"torch": "9"}
    assert set(position.states) == {5}
    assert position.states[5][0] == 1
    names = sorted(path.name for path in place(run, 1).iterdir())
    assert names == sorted([*FILES, "metrics.jsonl"])


def test_a_position_survives_json() -> None:
    origin = Origin({"local": {"lr": 0.1, "clip": None}}, "gh")
    position = Position(4, True, 2, 1, {3: (4, "ab"), 10: (2, "cd")}, 9, "ef", {"device": "cpu"})
    for one in (position, replace(position, origin=origin, attempt=3)):
        assert Position.from_json(json.loads(json.dumps(asdict(one)))) == one


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    for round in range(5):
        finish(tmp_path, round, keep=3)
    assert CheckpointStore(tmp_path).rounds() == [2, 3, 4]
    assert finish(tmp_path, 5, keep=1).rounds() == [5]


def test_committing_a_round_again_replaces_it(run: Path) -> None:
    store = CheckpointStore(run)
    _, position, _ = store.load_newest()
    store.commit(server(1), replace(position, finished=True))
    assert store.load_newest()[1].finished
    assert store.rounds() == [0, 1]


def flipped(position: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(position * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return damage


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "first bit": flipped(0.0),
    "a bit inside": flipped(0.37),
    "middle bit": flipped(0.5),
    "last bit": flipped(1.0),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "other json": lambda path: path.write_bytes(b"[]"),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_leads_to_the_checkpoint_before(
    run: Path, name: str, damage: Callable[[Path], Any]
) -> None:
    damage(place(run, 1) / name)
    state, position, complaints = CheckpointStore(run).load_newest()
    assert (position.round, state.digest()) == (0, server(0).digest())
    assert len(complaints) == 1
    assert "round_000001" in complaints[0]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_checkpoint_is_noticed(run: Path, name: str) -> None:
    shutil.copy(place(run, 0) / name, place(run, 1) / name)
    assert newest_round(run) == 0


@pytest.mark.parametrize("names", [(0, 1), (1, 2), (0, 2)])
def test_swapped_files_are_noticed(run: Path, names: tuple[int, int]) -> None:
    one, other = (place(run, 1) / FILES[name] for name in names)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert newest_round(run) == 0


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_client_state_leads_to_the_checkpoint_before(
    run: Path, damage: Callable[[Path], Any]
) -> None:
    damage(run / "clients" / "5" / "000001.1.safetensors")
    assert newest_round(run) == 0


def test_lines_after_the_commit_do_no_harm(run: Path) -> None:
    MetricsFile(run / "metrics.jsonl").append(event(2))
    assert newest_round(run) == 1


def test_none_whole_is_an_error(run: Path) -> None:
    for round in (0, 1):
        (place(run, round) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is valid .*start again"):
        CheckpointStore(run).load_newest()


def test_without_any_metrics_nothing_is_whole(run: Path) -> None:
    for folder in (run, place(run, 0), place(run, 1)):
        (folder / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl has changed since it was committed"):
        CheckpointStore(run).load_newest()


def test_half_written_and_foreign_folders_are_no_checkpoints(run: Path) -> None:
    shutil.copytree(place(run, 1), place(run, 2).with_suffix(".tmp"))
    (run / "checkpoints" / "round_old").mkdir()
    (run / "checkpoints" / "round_000009").touch()
    for name in (
        "round_\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2",
        "round_\u0663\u0663\u0663\u0663\u0663\u0663",
    ):
        (run / "checkpoints" / name).mkdir()  # digits, but not those of a round
    for name in ("round_2", "round_0000002", "round_+00002", "round_000002 "):
        (run / "checkpoints" / name).mkdir()
    assert CheckpointStore(run).rounds() == [0, 1]
    assert newest_round(run) == 1


def test_broken_later_checkpoints_are_discarded(run: Path) -> None:
    store = finish(run, 2, keep=5)
    store.discard_after(1)
    assert store.rounds() == [0, 1]


def blob_state(run: Path, round: int, rows: float) -> Bundle:
    path = run / "spool" / f"features-{round}"
    blob = Blob.write(path, [np.full((2, 3), rows, np.float32)])
    return Bundle(server(round).tensors, {}, {"features": blob})


def held(run: Path) -> set[str]:
    """The blobs of a run; a copy is of one of them."""
    names = {path.name for path in (run / "blobs").iterdir()}
    blobs = {name for name in names if not name.endswith(".copy")}
    assert {name.removesuffix(".copy") for name in names} == blobs
    return blobs


def test_blobs_are_adopted(run: Path) -> None:
    spooled = blob_state(run, 2, 1.0)
    finish(run, 2, spooled)
    state, _, _ = CheckpointStore(run).load_newest()
    blob = state.blobs["features"]
    assert blob.path == run / "blobs" / blob.sha256
    assert not spooled.blobs["features"].path.exists()
    assert np.array_equal(blob.open(), np.ones((2, 3)))
    assert CheckpointStore(run).adopt_blobs(state).blobs == state.blobs


def test_equal_blobs_are_one_file(run: Path) -> None:
    store = CheckpointStore(run)
    one, other = blob_state(run, 2, 1.0), blob_state(run, 3, 1.0)
    both = Bundle({}, {}, {"one": one.blobs["features"], "same": one.blobs["features"]})
    assert len({blob.path for blob in store.adopt_blobs(both).blobs.values()}) == 1
    assert store.adopt_blobs(other).blobs["features"].is_intact()
    assert len(held(run)) == 1


def test_blobs_go_with_the_last_checkpoint_that_names_them(run: Path) -> None:
    names = [
        finish(run, t, blob_state(run, t, t)).load_newest()[0].blobs["features"].sha256
        for t in (2, 3)
    ]
    assert held(run) == set(names)
    finish(run, 4, blob_state(run, 4, 3.0))
    assert held(run) == {names[1]}
    finish(run, 5)
    assert held(run) == {names[1]}
    finish(run, 6)
    assert held(run) == set()


def test_blobs_that_nobody_needs_are_tidied_up(run: Path) -> None:
    kept = finish(run, 2, blob_state(run, 2, 1.0)).load_newest()[0].blobs["features"].sha256
    store = CheckpointStore(run)
    older, newer = (store.adopt_blobs(blob_state(run, t, t)) for t in (3, 4))
    names = [state.blobs["features"].sha256 for state in (older, newer)]
    assert held(run) == {kept, *names}
    store.remove_unused_blobs(newer)
    assert held(run) == {kept, names[1]}
    store.remove_unused_blobs(Bundle())
    assert held(run) == {kept}
    # there is nothing to remove, and nothing is missed
    store.remove_unused_blobs(Bundle(blobs=newer.blobs))
    assert held(run) == {kept}


def test_a_checkpoint_under_the_name_of_another_round_is_noticed(run: Path) -> None:
    place(run, 1).rename(place(run, 7))
    _, position, (complaint,) = CheckpointStore(run).load_newest()
    assert position.round == 0 and "is the checkpoint of round 1" in complaint


def test_a_damaged_blob_is_replaced_by_a_new_one_with_its_content(run: Path) -> None:
    finish(run, 2, blob_state(run, 2, 1.0))
    for path in (run / "blobs").iterdir():
        flipped(0.5)(path)
    finish(run, 3, blob_state(run, 3, 1.0))
    assert newest_round(run) == 3


@pytest.mark.parametrize("damage", [flipped(0.0), DAMAGE["empty"], DAMAGE["gone"]])
def test_a_damaged_older_checkpoint_does_not_stop_a_commit(
    run: Path, damage: Callable[[Path], Any]
) -> None:
    finish(run, 2, blob_state(run, 2, 1.0))
    damage(place(run, 1) / "server.safetensors")
    finish(run, 3, blob_state(run, 3, 2.0), keep=4)
    assert newest_round(run) == 3


def test_a_commit_reaches_the_disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = os.fsync

    def spy(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    state = blob_state(run, 2, 1.0)
    monkeypatch.setattr(os, "fsync", spy)
    store = finish(run, 2, state)
    temporary = place(run, 2).with_suffix(".tmp")
    assert {temporary, store.folder, *(temporary / name for name in FILES)} <= set(synced)
    assert {state.blobs["features"].path, store.blobs} <= set(synced)


class FullDisk:
    """Lets a number of operations through and has no space left for the next one."""

    def __init__(self, patch: pytest.MonkeyPatch, operations: int) -> None:
        self.left = operations
        for name in ("fsync", "mkdir", "replace"):
            patch.setattr(os, name, self._limited(getattr(os, name)))
        real = Path.open

        def limited_open(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if "w" in mode:
                return TornFile(real(path, mode, buffering=0), self)
            return real(path, mode, *rest, **more)

        patch.setattr(Path, "open", limited_open)

    def spend(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _limited(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **more: Any) -> Any:
            self.spend()
            return real(*arguments, **more)

        return act


class TornFile:
    """A file that takes half of what is written when the disk is full."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        self._disk.spend()
        self._file.write(data[len(data) // 2 :])

    def __enter__(self) -> "TornFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def commit_on_a_disk_with(run: Path, operations: int) -> bool:
    """Whether a commit of round 2 got through with so many operations."""
    store = CheckpointStore(run)
    _, position, _ = store.load_newest()
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, operations)
        try:
            store.commit(server(2), replace(position, round=2))
        except CheckpointError as error:
            assert "round_000002" in str(error) or "000001.1.safetensors.copy" in str(error)
            for part in ("No space left on device", "bytes needed", "--resume"):
                assert part in str(error)
            return False
    return True


def test_a_full_disk_at_any_moment_of_a_commit(run: Path) -> None:
    operations = 0
    while not commit_on_a_disk_with(run, operations):
        assert not list((run / "checkpoints").glob("*.tmp"))
        assert (place(run, 1) / "manifest.json").exists()
        state, position, complaints = CheckpointStore(run).load_newest()
        assert state.digest() == server(position.round).digest()
        assert position.round in (1, 2)
        assert complaints == []
        operations += 1
    assert operations >= 9  # a folder, three files written and synced, a rename, two folders synced
    assert newest_round(run) == 2


def test_a_full_disk_while_a_blob_is_adopted(run: Path) -> None:
    state = blob_state(run, 2, 1.0)
    for operations in range(2):
        with pytest.MonkeyPatch.context() as patch:
            FullDisk(patch, operations)
            with pytest.raises(CheckpointError, match="No space left"):
                CheckpointStore(run).adopt_blobs(state)
        assert state.blobs["features"].is_intact()
    assert CheckpointStore(run).adopt_blobs(state).blobs["features"].is_intact()
