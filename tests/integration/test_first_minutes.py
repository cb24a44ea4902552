"""What a new user meets: help, completion, names that are nearly right, wrong keys at once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
import toy
from coterie.cli.main import app, main
from coterie.cli.terminal import echo, echo_table

NAMES = [str(known.name) for known in app.registered_commands]
WRONG = {
    "a plain table": (["run", "digits/moon", "local.lrr=1"], "local has no key 'lrr'"),
    "a method": (["run", "digits/moon", "method.nme=1"], "did you mean 'name'? moon takes: mu"),
    "an objective": (["run", "digits/simclr", "objective.taw=1"], "did you mean 'tau'?"),
    "a partition": (["partition", "partition.betta=1"], "did you mean 'beta'?"),
    "an evaluator": (["run", 'evaluate.with=[{name="knn",kk=5}]'], "did you mean 'k'?"),
    "a name": (["run", "method=mooon"], "did you mean 'moon'?"),
    "a data set": (["run", "data.name=tabel"], "data.name = 'tabel' is not known; did you mean"),
    "a backbone": (["run", "net=mpl"], "net.backbone = 'mpl' is not known; did you mean 'mlp'?"),
    "compare": (["compare", "scaffold", "method.momentun=0.9"], "did you mean 'momentum'?"),
    "sweep": (["sweep", "digits/fedprox", "method.mmu=1,2"], "did you mean 'mu'?"),
    "reproduce": (["reproduce", "moon-table1", "data.rot=x"], "data.root=DIR alone"),
    "a scale": (["reproduce", "moon-table1", "--scale", "smok"], "did you mean 'smoke'?"),
    "evaluate": (["evaluate", "RUN", "evaluate.metrik=knn"], "did you mean 'metric'?"),
    "export": (["export", "RUN", "--what", "modell"], "model, encoder, personal"),
    "predict": (["predict", "RUN", "x.npy", "--which", "worst"], "last or best"),
    "embed": (["embed", "nowhere", "x.npy"], "nowhere"),
}


def say(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What a command prints; an error if it ends with another code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    return said.out + said.err


@pytest.fixture(scope="module")
def finished(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    toy.run(toy_data, folder, run={"rounds": 1})
    return folder


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert say(["--version"], capsys) == f"coterie {coterie.__version__}\n"
    for option in ("-h", "--help"):
        said = say([option], capsys)
        assert all(word in said for word in ("--version", "--install-completion"))
    for word in ("--out", "--resume", "--watch", "--dry-run", "--quiet", "--debug"):
        assert word in say(["run", "--help"], capsys)
    said = say(["predict", "-h"], capsys)
    assert re.search(r"^  RUN +The directory of a run\. +\[required\]$", said, re.M)
    assert "[default: last]" in " ".join(said.split()) and "\\" not in said


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_short_help_in_which_nothing_names_its_type(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = say([name, "-h"], capsys)
    assert said == say([name, "--help"], capsys)
    assert said.startswith("Usage:") and "--debug" in said and "<" not in said


def test_no_line_of_the_list_of_commands_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    commands = say(["-h"], capsys).partition("Commands:")[2]
    assert all(name in commands for name in NAMES) and "..." not in commands


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("run digits/moo", ["digits/moon"]),
        ("sweep digits/moo", ["digits/moon"]),
        ("compare fedavg", ["fedavg", "fedavgm"]),
        ("reproduce moon-table1", ["moon-table1"]),
        ("list da", ["datasets"]),
        ("download cifar", ["cifar10", "cifar100"]),
    ],
)
def test_a_shell_completes_names(line: str, names: list[str], tmp_path: Path) -> None:
    words = {"COMP_WORDS": f"coterie {line}", "COMP_CWORD": "2"}
    environment = {**os.environ, **words, "_COTERIE_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['coterie']; from coterie.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == names, done.stderr


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_answered_before_torch_is_imported(
    case: str, finished: Path, tmp_path: Path
) -> None:
    words, answer = WRONG[case]
    arguments = [str(finished) if word == "RUN" else word for word in words]
    code = (
        "import sys; from coterie.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode in (2, 3) and answer in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "first"),
    [("moon", "digits/moon"), ("momn", "digits/moon"), ("digts/moon", "digits/moon")],
)
def test_a_name_that_is_nearly_a_configuration_gets_a_suggestion(
    name: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"no configuration {name!r}; did you mean {first!r}" in say(["run", name], capsys, 2)


def test_the_name_of_a_folder_lists_its_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    said = say(["run", "sites"], capsys, 2)
    assert "did you mean 'sites/fedavg', 'sites/moon'" in said
    assert "coterie list configs" in say(["run", "zzz"], capsys, 2)


def test_a_terminal_breaks_lines_between_words_and_a_file_has_them_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "one two three four five six seven eight"
    monkeypatch.setenv("COLUMNS", "30")
    echo(text)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    echo(text)
    assert capsys.readouterr().out == "one two three four five six\nseven eight\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    echo_table([("a", text), ("name", "x")])
    lines = capsys.readouterr().out.splitlines()
    echo_table([("a", text), ("name", "x")])
    assert capsys.readouterr().out.splitlines() == lines  # a table fits also without a terminal
    assert lines == ["a     one two three four five", "      six seven eight", "name  x"]


def test_a_partition_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = say(["partition"], capsys)
    assert max(map(len, whole.partition("\n\n")[2].splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = say(["partition"], capsys)
    assert max(map(len, shown.splitlines())) <= 50 < max(map(len, whole.splitlines()))
    assert re.search(r"\d more class(es)? not shown here", shown) and "not shown" not in whole


def test_reproduce_takes_the_folder_of_the_data_and_says_what_its_smallest_scale_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "moon-table1", "data.root=elsewhere", "--scale", "smoke"]
    said = say([*words, "--rows", "FedAvg", "--out", "out"], capsys)
    assert said.startswith("digits, two rounds: checks the wiring\n")
    assert [line for line in said.splitlines() if line.startswith("kept in out")]
    (config,) = Path("out/cells").glob("*/config.toml")
    assert 'root = ""' in config.read_text()  # the digits are installed
