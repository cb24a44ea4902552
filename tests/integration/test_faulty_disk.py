"""Disks that are full or broken, folders without rights, a clock that runs backwards.

Some operations of a run fail here, one at a time; `make endurance` does all of them.
"""

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import toy
from coterie.core.errors import CheckpointError, CoterieError, DataError
from coterie.data.datasets import Raw, load, store
from coterie.engine.record import Event, RoundEvent
from faulty_disk import FAULTS, REMOVING, Fault, in_child, wrapped
from rude_methods import clocks_that_run_backwards

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import disk

NOBODY = 65534


@pytest.fixture(scope="module")
def whole(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, disk.Remains]:
    """What runs on a good disk leave, by method."""
    folder, found = tmp_path_factory.mktemp("good disk"), {}
    for number, method in enumerate(disk.SUBJECTS):
        toy.run(toy_data, folder / str(number), **disk.settings(folder / "orders", method=method))
        found[method] = disk.remains(folder / str(number))
    return found


@pytest.fixture
def expected(whole: dict[str, disk.Remains]) -> disk.Remains:
    return whole[disk.SUBJECTS[0]]


@pytest.mark.parametrize(
    ("method", "step"), [(disk.SUBJECTS[0], 11), pytest.param(disk.SUBJECTS[1], 29, id="arrays")]
)
def test_an_operation_that_fails_loses_nothing(
    method: str, step: int, toy_data: Path, tmp_path: Path, whole: dict[str, disk.Remains]
) -> None:
    said, victim = "", 0
    while said != disk.ENDED:
        kind, out = FAULTS[victim % len(FAULTS)], tmp_path / str(victim)
        said = disk.fail_in_main(toy_data, out, victim, kind, whole[method], method)
        assert said in ("", disk.ENDED), f"operation {victim}, {kind}: {said}"
        shutil.rmtree(out)
        victim += step
    assert victim > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "kind", "method"),
    [
        (1, "full", disk.SUBJECTS[0]),
        (4, "broken", disk.SUBJECTS[0]),
        (11, "short", disk.SUBJECTS[0]),
        (50, "short", disk.SUBJECTS[1]),  # an array that a client writes
    ],
)
def test_an_operation_that_fails_in_a_worker_loses_nothing(
    victim: int,
    kind: str,
    method: str,
    toy_data: Path,
    tmp_path: Path,
    whole: dict[str, disk.Remains],
) -> None:
    out = tmp_path / "run"
    assert disk.fail_in_worker(toy_data, out, victim, kind, whole[method], method) == ""


def test_an_exhaustive_part_needs_a_trial_for_each_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SETTLED", 0.0)
    with pytest.raises(AssertionError, match="6 operations, and 5 trials of them"):
        disk.Operations(tmp_path, lambda *_: 3, 5)


def test_pieces_of_workers_that_were_ended_are_removed(toy_data: Path, tmp_path: Path) -> None:
    """One client's disk fails while another worker is writing: that one is killed."""
    pieces = [tmp_path / "clients" / "1" / "000001.1.safetensors.7.tmp", tmp_path / "spool" / "h"]

    def record(event: Event) -> None:
        if isinstance(event, RoundEvent):
            for piece in pieces:
                piece.parent.mkdir(parents=True, exist_ok=True)
                piece.touch()
            raise CheckpointError("cannot write something else")

    with pytest.raises(CheckpointError, match="something else"):
        toy.run(toy_data, tmp_path, recorders=[record])
    assert not [piece for piece in pieces if piece.exists()]


def test_a_cache_that_cannot_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    x, y = np.arange(24.0, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
    raw = Raw(x_train=x, y_train=y, x_test=x, y_test=y, classes=3)
    for victim in range(100):
        fault, cache = Fault(victim, FAULTS[victim % len(FAULTS)]), tmp_path / str(victim)
        try:
            with wrapped(fault):
                store("mine", raw, cache)
        except DataError as error:
            assert str(cache) in str(error) and "\n" not in str(error)
            assert not fault.needed or "No space left on device, 384 bytes needed" in str(error)
            assert fault.name in REMOVING or not [*cache.glob(".mine*")]
        if not fault.name:
            break
        assert np.array_equal(store("mine", raw, cache).x_train, x)
    assert 15 < victim < 100


def test_a_cache_of_images_that_cannot_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    """Images are decoded into files of a scratch folder, which the cache links or copies."""
    root = tmp_path / "images"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (8, 8), 40 * number).save(root / name / f"{number}.png")
    expected, failed = load("folder", str(root), tmp_path / "whole").x_train, set[str]()
    for victim in range(100):
        fault, cache = Fault(victim, FAULTS[victim % len(FAULTS)]), tmp_path / str(victim)
        try:
            with wrapped(fault):
                load("folder", str(root), cache)
        except DataError as error:
            assert str(cache) in str(error) and "\n" not in str(error)
            assert fault.name in REMOVING or not [*cache.glob(".*")]
        if not fault.name:
            break
        failed.add(fault.name)
        assert np.array_equal(load("folder", str(root), cache).x_train, expected)
    assert {"allocate", "link", "make_scratch"} < failed and victim < 100


def test_a_limit_of_the_system_on_files_is_one_line_and_can_be_lifted(
    toy_data: Path, tmp_path: Path, expected: disk.Remains
) -> None:
    """The system itself refuses the second half of a file here."""
    out, tables = tmp_path / "run", disk.settings(tmp_path / "orders")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        with pytest.raises(CheckpointError, match=r"^cannot write .*: File too large; what was"):
            toy.run(toy_data, out, **tables)

    assert in_child(work) == 0
    assert not list(out.rglob("*.tmp"))
    toy.run(toy_data, out, resume=True, **tables)
    assert disk.remains(out)[0] == expected[0]


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that every user can read and only its owner can write."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*/")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


def become_nobody() -> None:
    """Give up the rights of root, who may write anywhere."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def test_another_user_than_root_does_a_whole_run(
    readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, with all modules loaded: that user may not reach the interpreter's folder."""
    changes = {"method": {"name": "toy_methods:TwoModels"}, "run": {"rounds": 3}}
    data, own = toy.write_data(readable / "toy.npz"), readable / "own"
    toy.run(data, readable / "whole", **changes)
    own.mkdir()
    user = NOBODY if os.getuid() == 0 else os.getuid()
    os.chown(own, user, -1)
    monkeypatch.setenv("COTERIE_CACHE", str(own / "cache"))

    def work() -> None:
        become_nobody()
        with pytest.raises(toy.Killed):
            stop = toy.StopAfter(1, toy.Killed)
            toy.run(data, own / "run", recorders=[stop], **changes)
        toy.run(data, own / "run", resume=True, **changes)

    assert in_child(work) == 0
    assert toy.trace(own / "run") == toy.trace(readable / "whole")
    assert toy.outputs(own / "run") == toy.outputs(readable / "whole")
    assert {path.stat().st_uid for path in own.rglob("*")} == {user}


def test_a_user_without_rights_gets_one_line(
    readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(readable / "cache"))
    data = toy.write_data(readable / "toy.npz")
    toy.run(data, readable / "theirs", run={"rounds": 1})
    before = (readable / "theirs" / ".lock").read_bytes()
    readable.chmod(0o555)
    (readable / "theirs").chmod(0o555)
    (readable / "theirs" / ".lock").chmod(0o444)

    def work() -> None:
        become_nobody()
        for out, resume in ((readable / "new", False), (readable / "theirs", True)):
            with pytest.raises(CoterieError) as raised:
                toy.run(data, out, resume=resume, run={"rounds": 1})
            said = str(raised.value)
            assert raised.value.exit_code == 5
            assert said == (
                f"cannot use the run directory {out}: Permission denied; choose another --out"
            )

    assert in_child(work) == 0
    assert not (readable / "new").exists()
    assert (readable / "theirs" / ".lock").read_bytes() == before


def test_a_clock_that_runs_backwards_changes_nothing(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"method": {"name": "toy_methods:TwoModels"}, "run": {"rounds": 3}}
    toy.run(toy_data, tmp_path / "whole", **changes)
    for name, clock in clocks_that_run_backwards().items():
        monkeypatch.setattr(time, name, clock)
    with pytest.raises(toy.Killed):
        toy.run(toy_data, tmp_path / "run", recorders=[toy.StopAfter(2, toy.Killed)], **changes)
    toy.run(toy_data, tmp_path / "run", resume=True, **changes)
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "whole")
    assert toy.outputs(tmp_path / "run") == toy.outputs(tmp_path / "whole")


@pytest.mark.slow
def test_a_clock_that_runs_backwards_in_a_worker_changes_nothing(
    toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "run": {"rounds": 3},
        "executor": {"kind": "processes", "workers": 1},
        "method": {"name": "rude_methods:BackwardClock"},
    }
    toy.run(toy_data, tmp_path / "whole", **changes)
    changes["method"]["note"] = str(tmp_path / "turned")
    with pytest.raises(toy.Killed):
        toy.run(toy_data, tmp_path / "run", recorders=[toy.StopAfter(2, toy.Killed)], **changes)
    toy.run(toy_data, tmp_path / "run", resume=True, **changes)
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "whole")
    found, expected = toy.outputs(tmp_path / "run"), toy.outputs(tmp_path / "whole")
    del found["model.json"], expected["model.json"]  # it names the note
    assert found == expected
    turned = set(map(int, (tmp_path / "turned").read_text().split()))
    assert turned and os.getpid() not in turned
