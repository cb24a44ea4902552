"""Reading configurations: files, words of the command line, arguments from Python."""

from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import ConfigError
from coterie.core.settings import Cohort, Local, RunSettings
from coterie.experiment.tables import (
    PLAIN,
    TABLES,
    by_table,
    make_plain,
    parse_overrides,
    read,
    request,
    shipped,
    tables_of,
)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("local.lr=0.1", 0.1),
        ("local.lr = 1e-3", 0.001),
        ("local.lr=fast", "fast"),
        ("local.lr='0.1'", "0.1"),
        ("local.lr=true", True),
        ("local.lr=[1, 2]", [1, 2]),
        ('local.lr={a = 1, b = "x"}', {"a": 1, "b": "x"}),
        ("local.lr=", ""),
        ("local.lr=a=b", "a=b"),
        ("local.lr=/data/a b.npz", "/data/a b.npz"),
        (f"local.lr=1{'0' * 5000}", f"1{'0' * 5000}"),
    ],
)
def test_the_value_of_a_word_is_toml_or_else_text(word: str, value: Any) -> None:
    assert parse_overrides([word]) == {"local": {"lr": value}}


def test_words_are_collected_by_table() -> None:
    words = ["local.lr=0.1", "run.seed=3", "local.epochs=2"]
    assert parse_overrides(words) == {"local": {"lr": 0.1, "epochs": 2}, "run": {"seed": 3}}


def test_dotted_keys_and_tables_from_python_are_collected_alike() -> None:
    changes = {"local.lr": 0.1, "local": {"epochs": 2}, "run": {"seed": 3}}
    assert by_table(changes) == {"local": {"lr": 0.1, "epochs": 2}, "run": {"seed": 3}}


@pytest.mark.parametrize("word", ["run.seed", "run.=3", "=3", ".seed=3", "digits/fedavg"])
def test_a_word_of_another_form_is_named(word: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_overrides([word])
    assert repr(word) in str(raised.value) and "table.key=value" in str(raised.value)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("rnu.seed=3", "'run'"),
        ("evaluation.every=3", "'evaluate'"),
        ("epochs=3", "local.epochs"),
        ("zzz.key=3", ", ".join(TABLES)),
    ],
)
def test_a_table_that_does_not_exist_names_the_nearest_or_all(word: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="no table") as raised:
        parse_overrides([word])
    assert hint in str(raised.value)


def test_the_same_key_with_two_values_is_refused_and_with_one_it_is_not() -> None:
    with pytest.raises(ConfigError, match=r"run\.seed .*twice.*1.*2"):
        by_table({"run": {"seed": 1}, "run.seed": 2})
    assert by_table({"run": {"seed": 1}, "run.seed": 1}) == {"run": {"seed": 1}}


def test_a_plain_table_has_the_defaults_of_its_class() -> None:
    assert make_plain("cohort", {}) == Cohort()
    assert make_plain("run", {"seed": 3}) == RunSettings(seed=3)
    assert make_plain("local", {"schedule": "step", "milestones": [2, 5]}) == Local(
        schedule="step", milestones=(2, 5)
    )


@pytest.mark.parametrize(
    ("table", "values", "hints"),
    [
        ("local", {"momentun": 0}, ("local", "'momentun'", "'momentum'", "epochs")),
        ("run", {"round": 3}, ("run", "'round'", "'rounds'")),
        ("evaluate", {"evaluators": []}, ("evaluate", "'evaluators'", "with")),
        ("record", {"zzz": 1}, ("record", "'zzz'", "online")),
    ],
)
def test_a_key_that_does_not_exist_names_the_nearest_and_all(
    table: str, values: dict[str, Any], hints: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        make_plain(table, values)
    assert all(hint in str(raised.value) for hint in hints)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("run", "seed", -1),
        ("run", "seed", 1.5),
        ("run", "seed", True),
        ("run", "seed", "3"),
        ("local", "lr", 0),
        ("local", "lr", float("nan")),
        ("local", "lr", 10**400),
        ("local", "milestones", [1.5]),
        ("local", "optimizer", "rmsprop"),
        ("local", "nesterov", 1),
        ("cohort", "fraction", 1.5),
        ("evaluate", "targets", [0.5, float("inf")]),
        ("executor", "kind", "threads"),
    ],
)
def test_a_value_of_the_wrong_kind_or_range_is_named_with_its_key(
    table: str, key: str, value: Any
) -> None:
    with pytest.raises(ConfigError) as raised:
        make_plain(table, {key: value})
    assert str(raised.value).startswith(f"{table}.{key} = ")
    assert "\n" not in str(raised.value)


def test_every_table_without_a_chosen_class_is_plain() -> None:
    assert set(TABLES) - set(PLAIN) == {"partition", "objective", "method"}


FILES = {
    "broken": b"[run\nseed = 1",
    "twice": b"[run]\nseed = 1\nseed = 2",
    "no text": b"\xff\xfe\x00",
    "table": b"[trainer]\nseed = 1",
    "no table": b"run = 3",
    "list": b"[[run]]\nseed = 3",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_that_is_no_configuration_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "absent.toml")):
        read(tmp_path / "absent.toml")


def test_a_configuration_is_named_by_its_path_or_by_what_is_shipped(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[run]\nseed = 5\n")
    assert tables_of(str(path)) == {"run": {"seed": 5}}
    assert request(path, {}).name == "mine"
    assert request("digits/fedavg", {}).name == "digits/fedavg"
    assert "digits/fedavg" in shipped()
    with pytest.raises(ConfigError, match=r"'digits/fedvag'.*'digits/fedavg'"):
        tables_of("digits/fedvag")


def test_a_saved_configuration_counts_only_where_there_is_no_other(tmp_path: Path) -> None:
    saved = tmp_path / "my-run" / "config.toml"
    saved.parent.mkdir()
    saved.write_text("[run]\nseed = 5\n")
    assert request(None, {}, saved).tables == {"run": {"seed": 5}}
    assert request(None, {}, saved).name == "my-run"
    assert request("digits/fedavg", {}, saved).name == "digits/fedavg"
    assert request(None, {}, tmp_path / "absent").name == "digits/moon"


def test_wrong_keys_are_refused_before_any_part_is_looked_up() -> None:
    with pytest.raises(ConfigError, match=r"'lrr'.*'lr'"):
        request({"method": {"name": "nothing"}}, {"local.lrr": 1})


def test_the_plain_tables_of_all_shipped_configurations_are_right() -> None:
    assert [request(name, {}).name for name in shipped()] == list(shipped())


def test_a_run_from_before_the_tracking_tools_can_still_be_read(tmp_path: Path) -> None:
    saved = tmp_path / "config.toml"
    saved.write_text('[record]\ntensorboard = false\nembedding = "auto"\n')
    assert read(saved) == {"record": {"embedding": "auto"}}
    saved.write_text("[record]\ntensorboard = true\n")
    with pytest.raises(ConfigError, match=r'write record\.to = \["tensorboard"\]'):
        request(str(saved), {})
