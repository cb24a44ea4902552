"""Finished runs without checkpoints, and directories with a pipe or a folder for a file."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import toy
from coterie.cli.main import app
from resuming import Run, files, results

OTHER_NAMES = ("model.json", "model.safetensors", "best.safetensors")


def clean(folder: Path) -> str:
    """`coterie clean`: what it printed, or why it was refused."""
    ended = CliRunner().invoke(app, ["clean", str(folder)])
    return str(ended.exception) if ended.exception else ended.output


@pytest.fixture
def cleaned(copy: Path) -> Path:
    """A finished run without its checkpoints."""
    assert "removed" in clean(copy)
    return copy


def edit(folder: Path) -> None:
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("lr = 0.05", "lr = 0.07"))
    assert text != (folder / "config.toml").read_text()


def lose_lines(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[1:]))


def take_other(folder: Path) -> None:
    """Put all models of another run there."""
    other = folder.with_name("other")
    toy.run(folder.with_name("toy.npz"), other, run={"seed": 77})
    for name in OTHER_NAMES:
        shutil.copyfile(other / name, folder / name)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda folder: (folder / "report.html").unlink(), 5, "report.html is missing"),
        (lambda folder: (folder / "model.json").unlink(), 5, "model.json is missing"),
        (edit, 2, "local.lr is 0.07 here and was 0.05"),
        (lose_lines, 5, "metrics.jsonl is missing, or not the file that cleaned.json names"),
        (take_other, 5, "model.json is missing, or not the file that cleaned.json names"),
        (lambda folder: (folder / "cleaned.json").write_text("{}"), 5, "cleaned.json is damaged"),
    ],
)
def test_a_cleaned_run_that_was_changed_is_refused(
    change: Callable[[Path], object], code: int, said: str, cleaned: Path, run: Run
) -> None:
    toy.write_data(cleaned.with_name("toy.npz"))
    change(cleaned)
    before = files(cleaned)
    assert said in run("--out", cleaned, "--resume", code=code)
    assert files(cleaned) == before


def test_without_its_page_a_cleaned_run_of_an_older_version_does_not_begin_again(
    cleaned: Path, run: Run
) -> None:
    (cleaned / "cleaned.json").unlink()
    assert "from round" not in run("--out", cleaned, "--resume")
    (cleaned / "report.html").unlink()
    before = files(cleaned)
    assert "report.html is missing" in run("--out", cleaned, "--resume", code=5)
    assert files(cleaned) == before


def test_a_run_that_lost_a_file_is_not_cleaned(copy: Path, run: Run) -> None:
    (copy / "model.safetensors").unlink()
    before = files(copy)
    assert "resume the run first" in clean(copy) and files(copy) == before
    run("--out", copy, "--resume")
    assert "removed" in clean(copy)


def test_a_cleaned_run_gets_back_what_can_be_computed(cleaned: Path, run: Run) -> None:
    toy.write_data(cleaned.with_name("toy.npz"))
    kept = {name: (cleaned / name).read_bytes() for name in ("partition.json", "config.toml")}
    (cleaned / "partition.json").unlink()
    said = run("--out", cleaned, "--resume")
    assert "partition.json was missing or changed, and is written again" in said
    assert {name: (cleaned / name).read_bytes() for name in kept} == kept


def test_a_run_whose_clients_keep_their_states_is_cleaned_with_its_origin(
    copy: Path, run: Run
) -> None:
    toy.write_data(copy.with_name("toy.npz"))
    shutil.rmtree(copy / "clients")
    assert "removed" in clean(copy)
    edit(copy)
    assert "local.lr is 0.07 here and was 0.05 in cleaned.json" in run(
        "--out", copy, "--resume", code=2
    )


def test_an_older_summary_is_written_again(copy: Path, run: Run) -> None:
    (copy / "cleaned.json").write_text("{}")
    assert "removed" in clean(copy)
    run("--out", copy, "--resume")


@pytest.mark.parametrize("removed", [0, 1])
def test_a_clean_that_is_interrupted_leaves_a_run_that_can_be_resumed(
    removed: int, copy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.write_data(copy.with_name("toy.npz"))
    remove, calls = shutil.rmtree, []

    def interrupt(path: Path) -> None:
        calls.append(path)
        if len(calls) > removed:
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr("coterie.cli.clean.shutil.rmtree", interrupt)
        assert CliRunner().invoke(app, ["clean", str(copy)]).exit_code == 130
    assert "from round" not in run("--out", copy, "--resume")
    assert "removed" in clean(copy)
    assert not any((copy / name).exists() for name in ("checkpoints", "clients", "blobs", "spool"))


def test_cleaning_twice_keeps_what_the_run_was(cleaned: Path) -> None:
    before = (cleaned / "cleaned.json").read_bytes()
    assert clean(cleaned).startswith("0 files removed")
    assert (cleaned / "cleaned.json").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    ["checkpoints/round_000003/state.json", "metrics.jsonl", "partition.json", "report.html"],
)
def test_a_pipe_for_a_file_is_refused_instead_of_waited_for(
    name: str, copy: Path, run: Run
) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    said = run("--out", copy, "--resume", code=5)
    assert f"{copy / name} is a pipe, where a run has a file; remove it" in said


@pytest.mark.parametrize("name", ["checkpoints", "clients", "personal", "blobs"])
def test_a_file_for_a_folder_is_named(name: str, copy: Path, run: Run) -> None:
    if (copy / name).is_dir():
        shutil.rmtree(copy / name)
    (copy / name).touch()
    before = files(copy)
    said = run("--out", copy, "--resume", code=5)
    assert f"{copy / name} is a file, where a run has a folder" in said
    assert files(copy) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.json", ".attempt", "model.safetensors"])
def test_a_folder_for_a_file_is_named(name: str, copy: Path, run: Run) -> None:
    before = results(copy)
    (copy / name).unlink(missing_ok=True)
    (copy / name).mkdir()
    said = run("--out", copy, "--resume", code=5)
    assert f"{copy / name} is a folder, where a run has a file; remove it" in said
    (copy / name).rmdir()
    run("--out", copy, "--resume")
    assert results(copy) == before


def test_a_run_that_begins_again_says_so(copy: Path, run: Run) -> None:
    shutil.rmtree(copy / "checkpoints")
    shutil.rmtree(copy / "personal", ignore_errors=True)
    for name in ("report.html", *OTHER_NAMES):
        (copy / name).unlink()
    said = run("--out", copy, "--resume")
    assert f"note: {copy} has no checkpoint: the run begins again" in said


def test_a_model_alone_shows_that_a_run_was_finished(copy: Path, run: Run) -> None:
    shutil.rmtree(copy / "checkpoints")
    for name in ("report.html", "model.json"):
        (copy / name).unlink()
    before = files(copy)
    assert "model.json is missing" in run("--out", copy, "--resume", code=5)
    assert files(copy) == before


def test_cleaning_that_was_interrupted_is_completed(copy: Path, run: Run, tmp_path: Path) -> None:
    kept = shutil.copytree(copy / "checkpoints", tmp_path / "kept")
    clean(copy)
    before = (copy / "cleaned.json").read_bytes()
    shutil.copytree(kept, copy / "checkpoints")  # the clients' states are gone already
    assert "removed" in clean(copy) and (copy / "cleaned.json").read_bytes() == before
    run("--out", copy, "--resume")
