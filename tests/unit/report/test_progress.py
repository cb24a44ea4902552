"""When the progress of a run is shown, and in which form."""

import io
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from coterie.engine.record import ClientEvent, NoteEvent, RoundEvent, StartEvent
from coterie.report.progress import (
    Display,
    LastingConsole,
    announce,
    is_notebook,
    show_progress,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ZMQInteractiveShell:
    """The name of the shell of a notebook's kernel."""


def event(round: int) -> RoundEvent:
    metrics = {"accuracy": 0.5}
    return RoundEvent(round, "train", [0], {}, {}, False, metrics, 1, 1, 0, 0, 0.1, "d", "s")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", shell)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def play(wanted: bool | None, folder: object = "here") -> int:
    """Show a run of two rounds; return the number of recorders."""
    with show_progress(wanted, ["a title"]) as recorders:
        for record in recorders:
            record(StartEvent(folder, 3, 0, 2))  # type: ignore[arg-type]
            record(event(0))
            record(event(1))
    return len(recorders)


@pytest.mark.parametrize("wanted", [None, False])
def test_elsewhere_nothing_is_shown_unless_it_is_wanted(
    wanted: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not is_notebook()
    assert play(wanted) == 0 and capsys.readouterr().out == ""


def test_where_it_is_wanted_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert play(True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["a title", "3 clients, 2 rounds -> here"]
    assert [line.split("  ")[0] for line in lines[2:]] == ["round 1/2", "round 2/2"]


def test_a_notebook_has_a_plain_line_a_round(
    notebook: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_notebook()
    assert play(None) == 1
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 4 and "\x1b" not in shown
    assert play(False) == 0


def test_before_the_first_round_a_terminal_says_what_is_done_and_breaks_lines_at_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Console(file=terminal, width=40, force_terminal=True)
    with Display(console, ["a title of eight words, which is too long"]) as display:
        announce([display, print], "loading data")
        display._progress.refresh()
        display(StartEvent("here", 3, 0, 2, baseline="accuracy 0.1 untrained"))  # type: ignore[arg-type]
        display._progress.refresh()
    shown = terminal.getvalue()
    assert re.search(r"round .*0/\?.* loading data", shown)
    assert re.search(r"round .*0/2.* waiting for the first client", shown)
    assert "starting" not in shown
    assert "before training: accuracy 0.1 untrained" in shown
    assert re.search(r"which is too *\r?\nlong\n", shown)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "round 2/2 1/1 clients  loss 1.000  accuracy 0.500  4 bytes  0:00 left"),
        (60, "round 2/2 1/1 clients  loss 1.000  accuracy 0.500  0:00 left"),
        (50, "round 2/2 1/1 clients  accuracy 0.500  0:00 left"),
        (36, "round 2/2 accuracy 0.500  0:00 left"),
        (24, "round 2/2 accuracy 0.500"),
    ],
)
def test_a_narrow_terminal_leaves_out_what_matters_least_and_cuts_no_word(
    width: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("coterie.report.progress.format_bytes", lambda count: f"{count} bytes")
    with Display(Console(file=terminal, width=width, force_terminal=True)) as display:
        for round in (0, 1):
            display(ClientEvent(round, 2, 1, 1))
            display(replace(event(round), metrics={"train_loss": 1.0, "accuracy": 0.5}))
        display._progress.refresh()
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()))
    assert line in [shown.strip() for shown in lines]


def test_a_terminal_has_a_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert play(None) == 1
    assert "\x1b[" in terminal.getvalue()
    assert play(False) == 0


class Broken(io.StringIO):
    """A file that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error, self.calls = error, 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_a_run_goes_on_though_its_progress_cannot_be_shown(error: OSError) -> None:
    file = Broken(error)
    with Display(LastingConsole(file=file), ["a title", "what leaves"]) as display:
        for number in range(3):
            display(event(number))
    assert file.calls == 1


def test_without_an_output_there_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert play(None) == 0 and play(True) == 1


def test_what_is_shown_obeys_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Display(LastingConsole())(NoteEvent("left out: \x1b]0;title\x07"))
    assert capsys.readouterr().out == "note: left out: \\x1b]0;title\\x07\n"
