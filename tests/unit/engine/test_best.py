"""The best round: what it is, when its weights are written, and what happens when they are lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from canned import WEIGHT, Canned, Fixed, Listener, Toy, model
from safetensors.torch import load_file
from test_loop import make_loop, state_of, stop_after
from test_record import event

from coterie.core.bundle import Bundle
from coterie.core.settings import Checkpoint
from coterie.engine.best import Best, BestWeights, count_stale, find_best
from coterie.engine.checkpoints import CheckpointStore, Position
from coterie.engine.loop import Loop, Standing
from coterie.engine.record import MetricsFile, RoundEvent
from coterie.kit.networks import Frozen
from coterie.kit.stages import Stage

SCORES = [0.3, 0.7, 0.7, 0.1]  # by round: the second is the best


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have the evaluator measure one score after another."""
    scores = list(SCORES)

    def measure(self: Fixed, net: Frozen, data: Any, seed: int) -> dict[str, float]:
        # the weight grows by 7/6 a round, so that it tells the round
        return {"accuracy": scores[round(net.net.state_dict()[WEIGHT].item() * 6 / 7) - 1]}

    monkeypatch.setattr(Fixed, "__call__", measure)
    return scores


def loop_in(folder: Path, listener: Any = None, **changes: Any) -> Loop:
    folder.mkdir(exist_ok=True)
    changes = {"evaluators": {"fixed": Fixed("accuracy")}, **changes}
    return make_loop(folder, Canned(), listener, **changes)


def best_files(folder: Path) -> list[str]:
    """The files of best rounds; each has a second copy."""
    names = sorted(path.name for path in folder.glob("checkpoints/best/*.safetensors"))
    copies = sorted(path.name for path in folder.glob("checkpoints/best/*.copy"))
    assert copies == [f"{name}.copy" for name in names]
    return names


def at_round(number: int, value: float | None, stage: str = "train") -> RoundEvent:
    metrics = {} if value is None else {"accuracy": value}
    return RoundEvent(**{**vars(event(number)), "metrics": metrics, "stage": stage})


def resume(folder: Path, loop: Loop) -> Standing:
    """Continue from the newest checkpoint, as a new process does."""
    found = CheckpointStore(folder).load_newest()
    assert found is not None
    server, position, _ = found
    MetricsFile(folder / "metrics.jsonl").truncate(position.metrics_bytes)
    history = tuple(MetricsFile(folder / "metrics.jsonl").read())
    return loop.run(Standing(server, position, history))


def test_the_earlier_one_of_two_equal_rounds_is_the_best() -> None:
    history = [at_round(i, score) for i, score in enumerate([None, 0.2, 0.5, 0.5, 0.4])]
    found = find_best(history, "accuracy")
    assert found is not None and found.round == 2
    assert find_best(history, "other") is None and find_best([], "accuracy") is None


def test_evaluations_are_stale_since_the_best_round_and_in_one_stage_only() -> None:
    first = [at_round(0, 0.9, "first"), at_round(1, 0.1, "first"), at_round(2, 0.1, "first")]
    assert count_stale(first, "accuracy", "second") == 0
    second = [at_round(3, 0.1, "second"), at_round(4, None, "second"), at_round(5, 0.2, "second")]
    assert count_stale([*first, *second], "accuracy", "second") == 2
    assert count_stale([*first, *second, at_round(6, 1.0, "second")], "accuracy", "second") == 0
    assert count_stale([at_round(0, None)], "accuracy", "train") == 0


def test_a_commit_says_which_round_was_best_and_its_weights_are_there(
    tmp_path: Path, scored: list[float]
) -> None:
    loop = loop_in(tmp_path)
    standing = loop.run(loop.start())
    best = standing.position.best
    assert best is not None and (best.round, best.metric, best.value) == (1, "accuracy", 0.7)
    assert state_of(tmp_path, 3)["best"] == vars(best)
    assert loop.store.best.read(best) is not None
    weights = load_file(tmp_path / "checkpoints" / "best" / "round_000001.safetensors")
    assert weights[WEIGHT].item() == pytest.approx(2 * 70 / 60)


def test_weights_stay_in_memory_until_a_commit_only(tmp_path: Path, scored: list[float]) -> None:
    held: list[bool] = []
    loop = loop_in(tmp_path, checkpoint=Checkpoint(every=3))
    close = loop._close

    def watched(standing: Standing, replies: Any) -> Standing:
        after = close(standing, replies)
        held.append(after.best_weights is not None)
        return after

    loop._close = watched  # type: ignore[method-assign]
    loop.run(loop.start())
    assert held == [True, True, False, False]


def test_only_files_that_checkpoints_refer_to_are_kept(tmp_path: Path, scored: list[float]) -> None:
    scored[:] = [0.1, 0.2, 0.3, 0.4]
    loop = loop_in(tmp_path, checkpoint=Checkpoint(every=1, keep=2))
    loop.run(loop.start())
    assert best_files(tmp_path) == ["round_000002.safetensors", "round_000003.safetensors"]


def test_an_interrupted_run_finds_the_same_best_round(tmp_path: Path, scored: list[float]) -> None:
    whole = loop_in(tmp_path / "whole")
    expected = whole.run(whole.start()).position.best
    for round in range(3):
        folder = tmp_path / str(round)
        stopped = loop_in(folder, stop_after(round + 1), checkpoint=Checkpoint(every=1))
        with pytest.raises(KeyboardInterrupt):
            stopped.run(stopped.start())
        assert resume(folder, loop_in(folder)).position.best == expected


def lose(file: Path, damage: str) -> None:
    if damage == "missing":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)


@pytest.mark.parametrize("damage", ["missing", "flipped"])
@pytest.mark.parametrize("which", [0, 1])
def test_lost_weights_are_restored_from_their_copy(
    which: int, damage: str, tmp_path: Path, scored: list[float]
) -> None:
    stopped = loop_in(tmp_path, stop_after(2), checkpoint=Checkpoint(every=1))
    with pytest.raises(KeyboardInterrupt):
        stopped.run(stopped.start())
    store = CheckpointStore(tmp_path)
    found = store.load_newest()
    assert found is not None and found[1].best is not None
    files = sorted(path for path in store.best.folder.iterdir() if "000001" in path.name)
    before = [file.read_bytes() for file in files]
    assert before[0] == before[1]
    lose(files[which], damage)
    assert store.best.read(found[1].best) == before[0]
    notes = list(store.mend(*found[:2]))
    assert [str(files[0]) in note for note in notes] == ([True] if which == 0 else [])
    assert files[0].read_bytes() == before[0]
    assert damage == "missing" or files[1].read_bytes() == before[0]


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_lost_weights_are_noted_and_the_best_round_is_looked_for_again(
    damage: str, tmp_path: Path, scored: list[float]
) -> None:
    scored[:] = [0.9, 0.3, 0.5, 0.4]
    stopped = loop_in(tmp_path, stop_after(2), checkpoint=Checkpoint(every=1))
    with pytest.raises(KeyboardInterrupt):
        stopped.run(stopped.start())
    for file in [*(tmp_path / "checkpoints" / "best").iterdir()]:
        lose(file, damage)
    listener = Listener()
    standing = resume(tmp_path, loop_in(tmp_path, listener))
    (note,) = listener.notes
    assert "best round" in note and "from round 2 on" in note
    best = standing.position.best
    assert best is not None and (best.round, best.value) == (2, 0.5)
    assert loop_in(tmp_path).store.best.read(best) is not None


def test_the_round_of_the_checkpoint_itself_may_be_the_best_again(
    tmp_path: Path, scored: list[float]
) -> None:
    scored[:] = [0.9, 0.3, 0.2, 0.1]
    loop = loop_in(tmp_path)
    standing = loop.run(loop.start())
    BestWeights(tmp_path).prune(())
    again = resume(tmp_path, loop_in(tmp_path))
    assert again.position.best == Best(3, "accuracy", 0.1)
    assert again.best_weights is not None
    assert again.best_weights[WEIGHT].equal(standing.server["model"][WEIGHT])


def test_a_checkpoint_of_an_older_version_has_no_best_round() -> None:
    values = {**vars(Position(round=2)), "states": {}}
    del values["best"]
    assert Position.from_json(json.loads(json.dumps(values))).best is None


def test_without_a_global_model_or_the_metric_there_is_no_best_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured = loop_in(tmp_path / "a", evaluators={"fixed": Fixed("other")})
    assert unmeasured.run(unmeasured.start()).position.best is None
    monkeypatch.setattr(Toy, "model", lambda self, server: None)
    monkeypatch.setattr(Toy, "personal", lambda self, ctx, down, state: model(1.0)["model"])
    alone = loop_in(tmp_path / "b", evaluate={"metric": "train_loss"})
    assert alone.run(alone.start()).position.best is None


@pytest.mark.parametrize(("patience", "rounds"), [(0, 4), (1, 3), (2, 4), (9, 4)])
def test_a_run_ends_when_its_metric_has_not_improved_for_so_long(
    patience: int, rounds: int, tmp_path: Path, scored: list[float]
) -> None:
    listener = Listener()
    loop = loop_in(tmp_path, listener, evaluate={"patience": patience})
    standing = loop.run(loop.start())
    assert len(standing.history) == rounds and standing.position.finished
    if rounds < 4:
        (note,) = listener.notes
        assert "ends after round 3" in note and "evaluate.patience" in note
        assert "0.7 in round 2" in note


def test_patience_counts_evaluations_of_the_last_stage(
    tmp_path: Path, scored: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored[:] = [0.9, 0.1, 0.1, 0.1, 0.1, 0.1]
    stages = (Stage("first", 3), Stage("second", 3))
    monkeypatch.setattr(Toy, "stages", lambda self, rounds: stages)
    loop = loop_in(tmp_path, evaluate={"patience": 2})
    assert len(loop.run(loop.start()).history) == 5


def test_a_target_ends_the_run_before_patience_does(tmp_path: Path, scored: list[float]) -> None:
    target: dict[str, Any] = {"targets": (0.6,), "stop_at_target": True, "patience": 1}
    loop = loop_in(tmp_path, evaluate=target)
    assert len(loop.run(loop.start()).history) == 2
    high = {**target, "targets": (0.99,)}
    later = loop_in(tmp_path / "high", evaluate=high)
    assert len(later.run(later.start()).history) == 3


def test_the_file_is_written_before_the_checkpoint(
    tmp_path: Path, scored: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    commit = CheckpointStore.commit

    def watched(store: CheckpointStore, server: Bundle, position: Position) -> None:
        seen.append(best_files(tmp_path))
        commit(store, server, position)

    monkeypatch.setattr(CheckpointStore, "commit", watched)
    loop = loop_in(tmp_path, checkpoint=Checkpoint(every=1))
    loop.run(loop.start())
    assert seen[0] == ["round_000000.safetensors"]
