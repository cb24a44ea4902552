"""`coterie report`: one page for one run or many, and what it answers to bad input."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_run import make_run

from coterie.cli.main import call
from coterie.report import write_report

Say = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two finished runs and an unfinished one below `runs`."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_report(make_run(Path("runs/compare") / f"fedavg-{seed}", seed=seed))
    make_run(Path("runs/moon"), method="moon")
    return tmp_path


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """The command: what it printed, or the one line it failed with."""

    def report(*words: str, code: int = 0) -> str:
        assert call(["report", *words]) == code
        said = capsys.readouterr()
        assert len(said.err.splitlines()) == (1 if code else 0)
        return said.err if code else said.out

    return report


def test_one_run_gets_its_page_anew(folder: Path, say: Say) -> None:
    page = folder / "runs/compare/fedavg-0/report.html"
    before = page.read_bytes()
    page.write_bytes(before.replace(b"FedAvg", b"Nobody"))
    assert say("runs/compare/fedavg-0") == "page runs/compare/fedavg-0/report.html\n"
    assert page.read_bytes() == before
    assert say("runs/compare/fedavg-0", "--out", "here.html") == "page here.html\n"
    assert "FedAvg on digits" in (folder / "here.html").read_text()


def test_an_unfinished_run_is_not_marked_as_finished(folder: Path, say: Say) -> None:
    assert say("runs/moon") == "page runs/moon/progress.html (the run is not finished)\n"
    page = (folder / "runs/moon/progress.html").read_text()
    assert "MOON on digits, 4 clients, 3 rounds so far: accuracy" in page
    assert "at the end" not in page
    said = say("runs/moon", "--out", "runs/moon/report.html", code=2)
    assert "marks a finished run" in said and not (folder / "runs/moon/report.html").exists()


def test_several_runs_get_one_page_in_the_folder_that_holds_them(folder: Path, say: Say) -> None:
    said = say("runs/compare/fedavg-0", "runs/compare/fedavg-1")
    assert said == "2 runs in 1 row: page runs/compare/comparison.html\n"
    assert say("runs") == "3 runs in 2 rows: page runs/comparison.html\n"
    text = (folder / "runs/comparison.html").read_text()
    assert 'href="compare/fedavg-0/report.html"' in text
    assert "unfinished, 3 of 3 rounds: it is counted as far as it is" in text
    assert say("runs") == "3 runs in 2 rows: page runs/comparison.html\n"  # it may be renewed


def test_the_same_run_twice_is_one(folder: Path, say: Say) -> None:
    assert say("runs/moon", "runs/moon/", "runs/../runs/moon").startswith("page runs/moon/progress")
    assert say("runs/compare", "runs/compare/fedavg-1").startswith("2 runs in 1 row")


def test_a_damaged_run_among_others_is_named_and_the_others_are_shown(
    folder: Path, say: Say
) -> None:
    (folder / "runs/compare/fedavg-1/metrics.jsonl").write_text("nonsense\n")
    left, page = say("runs").splitlines()
    assert left.startswith("left out: runs/compare/fedavg-1/metrics.jsonl cannot be used: line 1")
    assert page.startswith("3 runs in 2 rows")
    assert "metrics.jsonl cannot be used" in (folder / "runs/comparison.html").read_text()
    said = say("runs/compare/fedavg-1", code=5)
    assert "metrics.jsonl cannot be used: line 1" in said
    (folder / "runs/compare/fedavg-0/metrics.jsonl").unlink()
    assert "none of 2 runs can be read" in say("runs/compare", code=5)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing"], "RUN 'nothing' does not exist"),
        (["empty"], "RUN 'empty' is no run directory, and holds none"),
        (["runs/moon/config.toml"], "is a file; name the directory of a run"),
        (["runs", "empty"], "RUN 'empty' is no run directory"),
        (["runs", "--out", "notes.html"], "is another file, and stays as it is"),
        (["runs/moon", "--out", "notes.html"], "is another file, and stays as it is"),
        (["runs", "--out", "runs/compare/fedavg-0/report.html"], "is another file, and stays"),
        (["runs", "--out", "empty"], "is a folder; name a file, e.g. page.html"),
        (["runs", "--out", "notes.html/page.html"], "its folder cannot be made"),
        ([], "Missing argument"),
    ],
)
def test_bad_words_are_one_line_and_lose_nothing(
    words: list[str], reason: str, folder: Path, say: Say
) -> None:
    (folder / "empty").mkdir()
    (folder / "notes.html").write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert reason in say(*words, code=2)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_page_that_cannot_be_written_needs_another_place(folder: Path, say: Say) -> None:
    said = say("runs/moon", "--out", "/proc/page.html", code=5)
    assert "cannot write /proc/page.html" in said and said.endswith("; choose another --out\n")


def test_links_and_hidden_folders_are_not_followed(folder: Path, say: Say) -> None:
    shutil.move("runs/moon", "runs/.trash/moon")
    (folder / "runs/compare/again").symlink_to(folder / "runs", target_is_directory=True)
    assert say("runs").startswith("2 runs in 1 row")
