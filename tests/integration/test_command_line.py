"""The commands as a user types them, and what a run leaves on the disk."""

import contextlib
import fcntl
import json
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import coterie
import toy
from coterie.cli.main import main
from coterie.core.errors import ConfigError
from coterie.experiment.config import resolve
from coterie.experiment.tables import shipped
from coterie.report.live import LivePage

pytestmark = pytest.mark.usefixtures("handlers")

Command = Callable[..., str]

TARGETS = {"targets": [0.1, 1.0]}
KINDS = {
    "methods": "fedavg",
    "objectives": "supervised",
    "nets": "simple-cnn",
    "datasets": "digits",
    "partitions": "dirichlet",
    "evaluators": "personal",
    "sinks": "tensorboard",
    "configs": "digits/fedavg",
}
KEYS = {
    *("round", "stage", "cohort", "lost", "rejected", "skipped", "metrics", "bytes_up"),
    *("bytes_down", "evaluation_bytes_up", "evaluation_bytes_down", "seconds", "digest", "states"),
    "clients",
}
OF_LAST = {"confusion", "recall", "client_confusion"}  # also in the line of the last round


@pytest.fixture(scope="module")
def config(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy configuration over two rounds, in a file called `my toy.toml`."""
    path = tmp_path_factory.mktemp("config") / "my toy.toml"
    tables = toy.tables(toy_data, run={"rounds": 2}, evaluate=TARGETS, checkpoint={"every": 1})
    path.write_text(resolve(tables).to_toml())
    return path


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command in an empty folder: what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert ended.value.code == code and (said.err == "" or code)
        return said.err if code else said.out

    return call


def program(*arguments: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stderr
    return done


def table(said: str) -> dict[str, str]:
    """The closing table: names in front, values behind two or more spaces."""
    rows = (re.split(r" {2,}", line, maxsplit=1) for line in said.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2 and not row[0].startswith("round")}


def test_a_run_prints_plain_lines_and_a_table(config: Path, command: Command) -> None:
    said = command("run", config, "--out", "here")
    assert "\x1b" not in said and "\r" not in said
    lines = said.splitlines()
    assert lines[0] == "fedavg on arrays, seed 5: tables with 6 columns, 3 classes"
    assert lines[1].startswith("leaves each client: weights")
    assert lines[2] == "6 clients, 2 rounds -> here"
    assert re.fullmatch(
        r"before training: accuracy 0\.\d{3} untrained, 0\.\d{3} largest class", lines[3]
    )
    pattern = r"loss \d\.\d+  accuracy [01]\.\d+  [\d.]+ [kM]B( sent)?  \d+:\d\d left"
    for number in (1, 2):
        assert re.fullmatch(rf"round {number}/2  {pattern}  6/6 clients", lines[3 + number])
    rows = table(said)
    history = toy.trace(Path("here"))
    accuracies = [line["metrics"]["accuracy"] for line in history]
    assert rows["final accuracy"] == f"{accuracies[-1]:.4f}"
    best = accuracies.index(max(accuracies)) + 1
    assert rows["best accuracy"] == f"{max(accuracies):.4f} (round {best})"
    assert re.fullmatch(r"1 round, [\d.]+ [kM]B", rows["to accuracy 0.1"])
    assert rows["to accuracy 1"] == "not reached"
    assert rows["sent up"] == f"{sum(line['bytes_up'] for line in history) / 1e6:,.1f} MB"
    assert rows["sent down"] == rows["sent up"]
    assert float(rows["seconds"]) >= 0.0
    assert rows["results"] == "here"
    assert rows["report"] == "here/report.html"


def test_the_default_directory_is_the_method_the_data_and_the_time(
    config: Path, tmp_path: Path, command: Command
) -> None:
    first = command("run", config, "--quiet")
    second = command("run", config, "--quiet", "run.seed=6")
    assert re.fullmatch(r"runs/fedavg-arrays-\d{8}-\d{6}\n", first)
    assert re.fullmatch(r"runs/fedavg-arrays-\d{8}-\d{6}(-2)?\n", second)
    assert first != second
    assert {f"runs/{path.name}\n" for path in (tmp_path / "runs").iterdir()} == {first, second}


def test_a_dry_run_writes_nothing_and_prints_what_can_be_run(
    config: Path, tmp_path: Path, command: Command
) -> None:
    said = command("run", config, "local.lr=0.25", "--dry-run", "--out", "never")
    assert not list(tmp_path.iterdir())
    assert "lr = 0.25" in said
    assert re.search(r"^# 6 clients with \d+ to \d+ samples each$", said, re.MULTILINE)
    assert re.search(r"^# [\d,]+ parameters, [\d.]+ [kM]B one way$", said, re.MULTILINE)
    (tmp_path / "again.toml").write_text(said)
    assert command("run", "again.toml", "--dry-run").splitlines()[1:] == said.splitlines()[1:]
    command("run", "again.toml", "--quiet", "--out", "a")
    command("run", config, "local.lr=0.25", "--quiet", "--out", "b")
    assert toy.trace(tmp_path / "a") == toy.trace(tmp_path / "b")


def test_what_a_run_leaves(config: Path, tmp_path: Path, command: Command) -> None:
    command("run", config, "--quiet", "--out", "run")
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("config.toml", "partition.json", "baseline.json", "metrics.jsonl", "checkpoints"),
        *("model.safetensors", "best.safetensors", "model.json", "report.html"),
    }
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "best",
        "round_000000",
        "round_000001",
    }

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert [set(line) - KEYS for line in lines] == [set(), OF_LAST]
    assert all(set(line) >= KEYS for line in lines)
    assert all(line["stage"] == "train" and len(line["cohort"]) == 6 for line in lines)
    assert all({"train_loss", "accuracy", "loss"} <= set(line["metrics"]) for line in lines)

    summary = json.loads((folder / "partition.json").read_text())
    assert len(summary["clients"]) == 6
    assert sum(client["train"] for client in summary["clients"]) == 180
    assert all(sum(c["classes"]) == c["train"] for c in summary["clients"])
    assert {"dataset", "fingerprint", "digest", "classes"} <= set(summary)

    weights = load_file(folder / "model.safetensors")  # numpy: neither Coterie nor torch
    assert weights["classifier.weight"].shape == (3, 8)
    assert {name.split(".")[0] for name in weights} == {"backbone", "projector", "classifier"}

    page = (folder / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)  # whole by itself

    command("run", folder / "config.toml", "--quiet", "--out", "again")
    assert toy.trace(tmp_path / "again") == toy.trace(folder)
    assert toy.outputs(tmp_path / "again") == toy.outputs(folder)


def test_a_port_is_checked_in_a_dry_run_too(command: Command, config: Path) -> None:
    said = command("run", config, "--watch-port", "65536", "--dry-run", code=2)
    assert "--watch-port 65536 must be from 0 to 65535" in said


def test_watch_prints_where_the_page_is_and_leaves_no_file(
    config: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []

    def look(live: LivePage) -> None:  # as a browser would, at the end of the run
        with urllib.request.urlopen(live.url) as answer:
            pages.append(answer.read().decode())

    monkeypatch.setattr(LivePage, "finish", look)
    said = command("run", config, "--watch", "--out", "run")
    assert re.search(r"^watch it at http://127\.0\.0\.1:\d+/$", said, re.M)
    assert "<h1>FedAvg on arrays</h1>" in pages[0]
    command("run", config, "--out", "other")
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("run", "other")]
    assert names[0] == names[1]
    assert toy.outputs(tmp_path / "run") == toy.outputs(tmp_path / "other")


def test_a_port_that_is_taken_ends_the_command_before_training(
    config: Path, tmp_path: Path, command: Command
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = command("run", config, "--watch-port", str(port), "--out", "run", code=2)
    assert f"--watch-port {port} cannot be used" in said and not (tmp_path / "run").exists()
    assert "leave one of them out" in command("run", config, "--watch", "--quiet", code=2)
    assert "--watch-port" in command("run", config, "--watch-port", "70000", code=2)


@pytest.mark.parametrize("kind", KINDS)
def test_list_gives_one_plain_name_a_line(kind: str, command: Command) -> None:
    names = command("list", kind).splitlines()
    assert KINDS[kind] in names
    assert names == sorted(names)
    assert all(re.fullmatch(r"[a-z0-9_/-]+", name) for name in names)


def test_a_list_of_all_has_headings_and_fits_80_columns_without_a_terminal(
    command: Command,
) -> None:
    lines = command("list").splitlines()
    starts = [at for at, line in enumerate(lines) if line in KINDS]
    assert {lines[at] for at in starts} == set(KINDS) and lines[0] == "methods"
    assert all(at == 0 or not lines[at - 1] for at in starts)
    assert max(map(len, lines)) <= 80
    for kind in KINDS:
        own = {line.split()[0] for line in lines if line.strip()}
        assert set(command("list", kind).splitlines()) <= own


def test_list_knows_every_shipped_configuration(command: Command) -> None:
    assert tuple(command("list", "configs").splitlines()) == shipped()
    command("list", "recipes")


def test_without_a_command_there_is_help_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err == "coterie: a command is missing (coterie --help)\n"
    assert said.out.startswith("Usage:")


def test_the_module_is_the_program_and_listing_imports_no_torch(tmp_path: Path) -> None:
    done = program("-m", "coterie", "--version", folder=tmp_path)
    assert done.stdout == f"coterie {coterie.__version__}\n"
    code = (
        "import sys; from coterie.cli.main import app, main\n"
        "try: main(['list'])\n"
        "finally: print([m for m in ('torch', 'sklearn', 'plotly') if m in sys.modules])"
    )
    lines = program("-c", code, folder=tmp_path).stdout.splitlines()
    assert lines[-1] == "[]"
    assert {"fedavg", "digits/fedavg"} <= {line.split()[0] for line in lines if line}


def on_terminal(arguments: list[str], columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command writes to a pseudo-terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    seen: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while piece := os.read(leader, 1 << 16):
                seen.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    reader.join()
    os.close(leader)
    assert ended.value.code == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(seen).decode())


@pytest.mark.parametrize("columns", [80, 160])
def test_on_a_terminal_the_display_is_live(
    columns: int, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = on_terminal(["run", str(config), "--out", "run"], columns, monkeypatch)
    for pattern in (
        *(r"round\s+2/2 .*6/6 clients", r"2/2 .*loss \d\.\d+", r"2/2 .*accuracy [01]\.\d+"),
        *(r"2/2 .*[\d.]+ [kM]B", r"2/2 .*\d+:\d\d left"),
    ):
        assert re.search(pattern, shown), pattern
    assert "\r" in shown and "final accuracy" in shown


def test_on_a_terminal_a_list_says_what_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_terminal(["list", "methods"], 120, monkeypatch)
    assert re.search(r"fedavg .*McMahan et al\., AISTATS 2017", shown)


def test_python_may_pass_a_table_or_a_dotted_key(config: Path, tmp_path: Path) -> None:
    changed = coterie.run(config, out=tmp_path / "a", local={"lr": 0.1}, **{"run.seed": 9})
    assert changed.config["local"]["lr"] == 0.1
    assert changed.config["run"]["seed"] == 9
    assert changed.metrics == changed.history[-1].metrics
    assert changed.encoder() is not None
    with pytest.raises(ConfigError, match=r"there is no table .lr.; did you mean local\.lr"):
        coterie.run(config, out=tmp_path / "b", lr=0.1)


@pytest.mark.slow
def test_doctor_finds_this_machine_fit(tmp_path: Path, command: Command) -> None:
    said = command("doctor")
    assert not list(tmp_path.iterdir())
    for word in ("coterie", "python", "torch", "cpu", "cores", "GB", "cache", "writable"):
        assert word in said
    assert re.search(r"^processor .+ cores, (bfloat16 works|no bfloat16: .+)$", said, re.MULTILINE)
    assert re.search(r"^kernel +(native, (avx512|avx2|generic)|torch: .+)$", said, re.MULTILINE)
    assert re.search(r"^executors +serial = processes, [\d.]+ s$", said, re.MULTILINE)


@pytest.mark.slow
def test_a_run_as_a_process_of_its_own(config: Path, tmp_path: Path) -> None:
    workers = ("executor.kind=processes", "executor.workers=1", 'executor.devices=["auto"]')
    done = program("-m", "coterie", "run", str(config), *workers, "--out=run", folder=tmp_path)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert table(done.stdout)["results"] == "run"
    coterie.run(config, out=tmp_path / "here")
    assert toy.trace(tmp_path / "run") == toy.trace(tmp_path / "here")
