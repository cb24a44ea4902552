"""`coterie compare` and `coterie sweep`: one table, nothing run twice."""

import json
import re
from pathlib import Path

import pytest

from coterie.cli.compare import parse_axis, scale_rate
from coterie.cli.main import main
from coterie.core.errors import ConfigError
from coterie.experiment.config import method_config

SMALL = ["run.rounds=2", "local.epochs=1", "executor.kind=serial"]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_methods_and_seeds_become_one_table_and_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "fedavg", "fedavgm", "solo", *SMALL, "--seeds", "2", "--out", str(tmp_path)]
    assert call(*words) == 0
    first = capsys.readouterr().out
    (folder,) = (tmp_path / "tables").iterdir()
    assert folder.name.startswith("fedavg-fedavgm-solo-") and f"kept in {folder}" in first
    rows = json.loads((folder / "table.json").read_text())["rows"]
    assert [(row["name"], row["runs"]) for row in rows] == [
        ("fedavg", 2),
        ("fedavgm", 2),
        ("solo", 2),
    ]
    assert "±" in first and "time" in first and "rounds" in first
    assert (folder / "table.txt").read_text().strip() in first
    page = (folder / "report.html").read_text()
    assert f"page {folder / 'report.html'}" in first and page.count('/report.html"') == 6
    assert "coterie compare fedavg fedavgm solo" in re.sub("</?span>", "", page)
    table = first.partition("\n\n")[2].partition("kept in")[0]
    assert max(map(len, table.splitlines())) <= 80
    for row in rows:  # the text that is shown is the number, whole
        assert f"{row['final']['mean']:.4f} ± {row['final']['std']:.4f}" == row["final"]["shown"]
        assert row["final"]["shown"] in table

    metrics = {path: path.read_bytes() for path in tmp_path.glob("*/metrics.jsonl")}
    assert len(metrics) == 6
    assert call(*words) == 0
    again = capsys.readouterr().out
    assert again.count("(kept)") == 6
    assert all(path.read_bytes() == data for path, data in metrics.items())


def test_a_method_brings_its_method_objective_and_server_tables_only() -> None:
    chosen = method_config("fedavgm", "digits/fedavg", {"local": {"lr": 0.123}}, number=2)
    assert chosen.server.optimizer == "momentum"
    assert chosen.local.lr == 0.123
    assert chosen.run.seed == 2
    keen = method_config("scaffold", "digits/fedavg", {"method": {"momentum": 0.9}}, number=0)
    assert keen.tables["method"]["momentum"] == 0.9
    own = method_config("toy_methods:TwoModels", "digits/fedavg", {}, number=0)
    assert own.tables["method"] == {"name": "toy_methods:TwoModels", "pull": 0.1}


def test_a_rate_for_steps_without_momentum_is_not_taken_with_momentum() -> None:
    rates = {
        "as shipped": scale_rate("scaffold", "heart/fedavg", {}),
        "another key": scale_rate("scaffold", "heart/fedavg", {"method": {"correction": "x"}}),
        "momentum": scale_rate("scaffold", "heart/fedavg", {"method": {"momentum": 0.9}}),
    }
    found = {name: tables.get("local", {}).get("lr") for name, tables in rates.items()}
    assert found == {"as shipped": 0.2, "another key": 0.2, "momentum": None}


def test_a_run_that_fails_is_a_row_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["run.rounds=9", "local.lr=1e9", "--out", str(tmp_path)]
    words = ["compare", "fedavg", *SMALL[1:], *more]
    assert call(*words) == 4
    said = capsys.readouterr()
    assert "failed: no client's training stayed finite" in said.out
    assert said.err.startswith("coterie: 1 of 1 runs failed")
    assert len(said.err.splitlines()) == 1


def test_the_page_names_the_runs_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["local.lr=0.05,1e9", "run.rounds=3", *SMALL[1:], "--out", str(tmp_path)]
    assert call("sweep", "digits/fedavg", *grid) == 4
    (page,) = tmp_path.glob("tables/*/report.html")
    assert f"page {page}" in capsys.readouterr().out
    text = page.read_text()
    assert "local.lr=1e9" in text and "1 run failed or cannot be read" in text
    assert "failed: no client&#x27;s training stayed finite" in text


def test_a_sweep_runs_the_grid_and_averages_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["local.lr=0.01,0.1", "run.seed=0,1"]
    assert call("sweep", "digits/fedavg", *grid, *SMALL, "--out", str(tmp_path)) == 0
    (file,) = tmp_path.glob("tables/local.lr=0.01-local.lr=0.1-*/table.json")
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == ["local.lr=0.01", "local.lr=0.1"]
    assert all(row["runs"] == 2 for row in rows)
    assert "[4/4]" in capsys.readouterr().out


def test_a_second_comparison_leaves_the_table_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["run.rounds=1", *SMALL[1:], "--out", str(tmp_path)]
    assert call("compare", "fedavg", *small) == 0
    (first,) = tmp_path.glob("tables/*/table.json")
    kept = first.read_bytes()
    assert call("compare", "fedavg", "fedprox", *small) == 0
    assert call("compare", "fedavg", "local.lr=0.01", *small) == 0
    assert len(list(tmp_path.glob("tables/*/table.json"))) == 3
    assert first.read_bytes() == kept
    assert call("compare", "fedavg", *small) == 0
    assert len(list(tmp_path.glob("tables/*/table.json"))) == 3 and first.read_bytes() == kept


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("local.lr=0.1,0.2", ["0.1", "0.2"]),
        ("evaluate.targets=[0.1,0.2],[0.3]", ["[0.1,0.2]", "[0.3]"]),
        ("data.root='a,b',c", ["'a,b'", "c"]),
    ],
)
def test_commas_in_brackets_and_quotes_do_not_separate(word: str, values: list[str]) -> None:
    key = word.partition("=")[0]
    assert parse_axis(word) == [f"{key}={value}" for value in values]


@pytest.mark.parametrize("word", ["local.lr", "local.lr=", "local.lr=1,"])
def test_an_axis_without_values_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form"):
        parse_axis(word)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["compare", "run.seed=1"], "no method was named"),
        (["compare", "fedavgg"], "did you mean 'fedavg'?"),
        (["compare", "fedavg", "--config", "digits/none"], "there is no configuration"),
        (["sweep", "local.lr=1"], "name a configuration first"),
        (["sweep", "digits/fedavg"], "no key to sweep"),
        (["sweep", "digits/fedavg", *(f"{k}=1,2" for k in "abcdefghijklmn")], "has 16,384 runs"),
        (["compare", "fedavg", "--seeds", "1000000000"], "must be 10,000 or fewer"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*words) == 2
    said = capsys.readouterr().err
    assert reason in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
