"""What once went wrong: each test is one mishap that must not come back."""

from pathlib import Path

import numpy as np
import pytest

import toy
from coterie.core.errors import ConfigError


def test_a_folder_with_files_of_ones_own_is_refused_and_left_alone(
    toy_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine" / "evaluation").mkdir(parents=True)
    (tmp_path / "mine" / "evaluation" / "a.txt").write_text("precious")
    (tmp_path / "mine" / "notes.tmp").write_text("precious")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="is not empty and holds no run"):
            toy.run(toy_data, tmp_path / "mine", resume=resume)
    assert (tmp_path / "mine" / "evaluation" / "a.txt").read_text() == "precious"
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"evaluation", "notes.tmp"}


def test_a_test_set_that_ends_in_a_batch_of_one_can_be_normalised_by_batches(
    tmp_path: Path,
) -> None:
    toy.write_data(tmp_path / "toy.npz", train=180, test=257)
    net = {"norm": "bn", "bn_buffers": "local"}
    result = toy.run(tmp_path / "toy.npz", tmp_path / "run", run={"rounds": 1}, net=net)
    assert 0.0 <= result.metrics["accuracy"] <= 1.0


def test_personal_models_are_whole(toy_data: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    net = {"norm": "bn", "bn_buffers": "local"}
    toy.run(toy_data, tmp_path / "run", method={"name": "solo"}, net=net)
    weights = load_file(tmp_path / "run" / "personal" / "0.safetensors")
    means = [weights[name] for name in weights if name.endswith("running_mean")]
    assert len(means) == 2
    assert all(np.abs(mean).max() > 0 for mean in means)


def test_text_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from coterie.engine.record import NoteEvent
    from coterie.report.progress import Display

    Display(Console(width=200))(NoteEvent("client 1 failed: [/data/x] [enforce fail]"))
    assert "[/data/x] [enforce fail]" in capsys.readouterr().out
