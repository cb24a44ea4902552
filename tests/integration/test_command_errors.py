"""What commands say when they fail, with --debug and without."""

from pathlib import Path

import pytest

from coterie.cli.main import app, main
from coterie.core.errors import DataError

pytestmark = pytest.mark.usefixtures("handlers")


def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """For every command the words behind its name that make it fail."""

    def fail(*arguments: object, **options: object) -> None:
        raise DataError("the file x is broken")

    monkeypatch.setattr("coterie.cli.doctor._check_agreement", fail)
    for module in ("reproduce.runs", "experiment.run"):  # the first imports from the second
        monkeypatch.setattr(f"coterie.{module}.execute", fail)
    return {
        "run": ["digits/fedavg"],
        "predict": ["nothing-of-that-name", "data"],
        "embed": ["nothing-of-that-name", "data"],
        "evaluate": ["nothing-of-that-name"],
        "export": ["nothing-of-that-name"],
        "clean": ["nothing-of-that-name"],
        "compare": ["fedavg"],
        "sweep": ["digits/fedavg", "run.seed=0"],
        "report": ["nothing-of-that-name"],
        "reproduce": ["nothing-of-that-name"],
        "partition": ["local.lr=fast"],
        "download": ["nothing-of-that-name"],
        "list": ["nothing-of-that-name"],
        "doctor": [],
    }


@pytest.mark.parametrize("name", [str(known.name) for known in app.registered_commands])
def test_debug_shows_the_traceback_of_every_command_wherever_it_stands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = broken(monkeypatch)[name]
    said = {}
    for arguments in ([name, *words], ["--debug", name, *words], [name, *words, "--debug"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code in (2, 3)
        said[" ".join(arguments)] = capsys.readouterr().err
    plain, *shown = said.values()
    assert plain.startswith("coterie: ") and plain.count("\n") == 1
    for text in shown:
        assert text.startswith("Traceback (most recent call last)") and text.endswith(plain)


def test_debug_before_the_command_also_shows_what_failed_on_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Stopped(Exception):
        """The display was made: nothing has to run."""

    def display(*arguments: object, debug: bool = False) -> None:
        asked.append(debug)
        raise Stopped

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.report.progress.Display", display)
    for arguments in (["run"], ["--debug", "run"], ["run", "--debug"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert asked == [False, True, True]


def test_an_unexpected_error_is_called_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.chdir(tmp_path)
    for module in ("reproduce.runs", "experiment.run"):  # the first imports from the second
        monkeypatch.setattr(f"coterie.{module}.execute", fail)
    with pytest.raises(SystemExit) as ended:
        main(["run", "digits/fedavg"])
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert said == "coterie: ZeroDivisionError: by nothing (this is a bug; --debug shows where)\n"
