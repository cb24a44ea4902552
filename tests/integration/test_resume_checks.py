"""What `--resume` checks before it changes anything: configuration, data, whose checkpoints."""

import shutil
from pathlib import Path

import pytest

import toy
from resuming import Reference, Run, files, half_done, results, rewrite_states


@pytest.fixture(scope="module")
def stopped(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its third round; the second is committed."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    half_done(toy_data, folder)
    return folder


@pytest.fixture
def halted(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("content", ["{}", "", "[1", '{"digest": "of others"}', None])
def test_a_partition_that_is_lost_is_computed_again(
    content: str | None, copy: Path, run: Run
) -> None:
    before = files(copy)
    if content is None:
        (copy / "partition.json").unlink()
    else:
        (copy / "partition.json").write_text(content)
    said = run("--out", copy, "--resume")
    assert f"{copy / 'partition.json'} was missing or changed, and is written again" in said
    assert files(copy) == before


def test_a_partition_that_is_lost_does_not_hide_other_data(tmp_path: Path, run: Run) -> None:
    data, folder = toy.write_data(tmp_path / "data.npz"), tmp_path / "run"
    half_done(data, folder)
    toy.write_data(data, train=181)
    (folder / "partition.json").unlink()
    before = files(folder)
    assert "are not the ones it was started with" in run("--out", folder, "--resume", code=3)
    assert files(folder) == before


def test_a_configuration_that_is_no_toml_is_refused(copy: Path, run: Run) -> None:
    (copy / "config.toml").write_text("[run")
    assert "config.toml is not TOML" in run("--out", copy, "--resume", code=2)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("lr = 0.05", "lr = 0.5", "local.lr is 0.5 here and was 0.05"),
        ("seed = 5", "seed = 6", "run.seed is 6 here and was 5"),
        ("rounds = 4", "rounds = 5", "run.rounds is 5 here and was 4"),
        ("pull = 0.1", "pull = 0.2", "method.pull is 0.2 here and was 0.1"),
        ("batch_size = 16", "batch_size = 8", "local.batch_size is 8 here and was 16"),
        ("epochs = 1", "epochs = 2", "local.epochs is 2 here and was 1"),
        ("fraction = 1.0", "fraction = 0.5", "cohort.fraction is 0.5 here and was 1.0"),
        ("projection = 8", "projection = 4", "net.projection is 4 here and was 8"),
        ("beta = 1.0", "beta = 0.9", "partition.beta is 0.9 here and was 1.0"),
        ("every = 1", "every = 2", "evaluate.every is 2 here and was 1"),
    ],
)
def test_a_configuration_that_was_edited_is_refused_by_the_key(
    before: str, after: str, words: str, halted: Path, run: Run
) -> None:
    folder, config = halted, halted / "config.toml"
    text = config.read_text()
    assert text.count(f"\n{before}\n") == 1
    config.write_text(text.replace(f"\n{before}\n", f"\n{after}\n"))
    kept = files(folder)
    said = run("--out", folder, "--resume", code=2)
    assert words in said and "in the checkpoint of round 2" in said
    assert files(folder) == kept


def test_without_its_configuration_a_run_is_not_taken_for_the_default_one(
    reference: Reference, copy: Path, run: Run
) -> None:
    before = files(copy)
    (copy / "config.toml").unlink()
    rest = files(copy)
    said = run("--out", copy, "--resume", code=2)
    assert f"{copy / 'config.toml'} is missing" in said and "data.name is 'digits' here" in said
    assert files(copy) == rest
    said = run(reference[1], "--out", copy, "--resume")
    assert f"{copy / 'config.toml'} was missing, and is written again" in said
    assert files(copy).keys() == before.keys()
    assert results(copy) == results(reference[0])


@pytest.mark.parametrize("left", ["metrics", "older checkpoints"])
def test_without_its_configuration_and_a_checkpoint_that_has_it_a_run_is_refused(
    left: str, reference: Reference, copy: Path, run: Run
) -> None:
    (copy / "config.toml").unlink()
    if left == "metrics":
        shutil.rmtree(copy / "checkpoints")
    else:
        rewrite_states(copy, lambda values: values.pop("origin"))
    before = files(copy)
    assert "config.toml is missing" in run(reference[1], "--out", copy, "--resume", code=2)
    assert files(copy) == before


def test_checkpoints_of_another_run_are_refused(
    toy_data: Path, tmp_path: Path, halted: Path, run: Run
) -> None:
    half_done(toy_data, tmp_path / "other", run={"seed": 6})
    for name in ("checkpoints", "clients", "metrics.jsonl"):
        if (halted / name).is_dir():
            shutil.rmtree(halted / name)
            shutil.copytree(tmp_path / "other" / name, halted / name)
        else:
            shutil.copy(tmp_path / "other" / name, halted / name)
    before = files(halted)
    said = run("--out", halted, "--resume", code=2)
    assert "run.seed is 5 here and was 6 in the checkpoint of round 2" in said
    assert files(halted) == before


def test_strange_files_among_the_states_are_named_and_change_nothing(
    halted: Path, reference: Reference, run: Run
) -> None:
    folder = halted
    (folder / "clients" / "notes").mkdir()
    (folder / "clients" / "\u00b2").mkdir()
    (folder / "clients" / "readme.txt").touch()
    (folder / "clients" / "3" / "a.b.safetensors").touch()
    (folder / "clients" / "3" / "backup.safetensors").touch()
    said = run("--out", folder, "--resume")
    assert "what is no state of a client is ignored" in said
    for name in ("notes", "readme.txt", "a.b.safetensors", "backup.safetensors"):
        assert name in said and list(folder.glob(f"clients/**/{name}"))
    assert results(folder) == results(reference[0])
