"""Resolved configurations: what is merged, written, hashed and compared."""

import hashlib
import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import Cohort
from coterie.data.partitions.dirichlet import Dirichlet
from coterie.data.partitions.iid import IID
from coterie.experiment.config import Config, load, method_config, resolve
from coterie.experiment.tables import TABLES, shipped
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.objectives.supervised import Supervised


def test_without_a_table_there_are_the_defaults_of_every_one() -> None:
    config = resolve({})
    assert tuple(config.tables) == TABLES
    assert config.method == FedAvg() and config.objective == Supervised()
    assert config.partition == Dirichlet() and config.cohort == Cohort()
    assert list(config.evaluators) == config.tables["evaluate"]["with"]


def test_overrides_are_laid_over_the_tables_key_by_key() -> None:
    config = resolve({"local": {"lr": 0.5, "epochs": 3}}, {"local": {"lr": 0.1}})
    assert (config.local.lr, config.local.epochs) == (0.1, 3)
    assert config.tables["local"]["lr"] == 0.1


def test_every_key_of_a_chosen_class_is_in_its_table() -> None:
    config = resolve({"method": {"name": "fedprox", "mu": 0.5}})
    assert config.method == FedProx(mu=0.5)
    assert config.tables["method"] == {"name": "fedprox", **asdict(FedProx(mu=0.5))}


def test_keys_of_a_class_that_an_override_replaces_are_left_out() -> None:
    tables = {"method": {"name": "fedprox", "mu": 0.5}}
    assert resolve(tables, {"method": {"name": "fedavg"}}).tables["method"] == {"name": "fedavg"}
    assert resolve(tables, {"method": {"name": "fedprox"}}).method == FedProx(mu=0.5)


def test_a_partition_of_another_kind_keeps_the_keys_that_it_has_too() -> None:
    tables = {"partition": {"kind": "dirichlet", "clients": 7, "beta": 0.3}}
    config = resolve(tables, {"partition": {"kind": "iid"}})
    assert isinstance(config.partition, IID) and config.partition.clients == 7
    assert "beta" not in config.tables["partition"]


@pytest.mark.parametrize(
    ("tables", "hints"),
    [
        ({"method": {"mu": 1}}, ("'mu'", "fedavg takes", "no key")),
        ({"partition": {"alpha": 1}}, ("'alpha'", "dirichlet takes", "beta")),
        ({"method": {"name": "fedavgg"}}, ("method.name", "'fedavgg'", "'fedavg'")),
        ({"partition": {"kind": "diriclet"}}, ("partition.kind", "'diriclet'", "'dirichlet'")),
        ({"method": {"name": 5}}, ("method.name = 5",)),
        ({"net": {"backbone": "simple_cnn"}}, ("net.backbone", "'simple-cnn'")),
        ({"evaluate": {"last": ["probes"]}}, ("evaluate.last", "'probes'")),
        ({"data": {"name": "digit"}}, ("data.name", "'digits'")),
        ({"data": {"augment": "sepia"}}, ("data.augment", "'sepia'")),
        ({"method": {"name": "fedprox", "mu": -1}}, ("method.mu = -1",)),
        ({"trainer": {}}, ("'trainer'",)),
    ],
)
def test_what_does_not_exist_names_its_key_and_the_nearest(
    tables: dict[str, Any], hints: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(tables)
    assert all(hint in str(raised.value) for hint in hints)


@pytest.mark.parametrize(
    ("tables", "hints"),
    [
        (
            {"method": {"name": "moon"}, "objective": {"name": "simsiam"}},
            ("method.name = 'moon'", "supervised", "'simsiam'"),
        ),
        ({"local": {"nesterov": True, "momentum": 0.0}}, ("local.nesterov", "momentum")),
        (
            {"evaluate": {"with": [], "last": ["accuracy"], "stop_at_target": True}},
            ("evaluate.last", "evaluate.stop_at_target"),
        ),
    ],
)
def test_tables_that_do_not_go_together_are_refused(
    tables: dict[str, Any], hints: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(tables)
    assert all(hint in str(raised.value) for hint in hints)


CHANGED: dict[str, dict[str, Any]] = {
    "run": {"seed": 3},
    "data": {"root": 'a "quoted" \\ path/é'},
    "partition": {"kind": "iid", "clients": 3},
    "net": {"backbone": "mlp"},
    "local": {"lr": 1e-05, "schedule": "step", "milestones": [2, 5]},
    "evaluate": {"targets": [0.5, 1.0], "with": ["accuracy", {"name": "knn", "k": 20}]},
    "method": {"name": "fedprox", "mu": 1},
    "record": {"to": ["tensorboard"]},
}


PARTITIONS = [{"partition": {"kind": kind}} for kind in registry.names("data/partitions")]


@pytest.mark.parametrize("tables", [{}, CHANGED, *PARTITIONS], ids=str)
def test_a_configuration_that_was_written_is_read_back(tables: dict[str, Any]) -> None:
    config = resolve(tables)
    written = tomllib.loads(config.to_toml())
    again = resolve(written)
    assert again.tables == config.tables and again.hash() == config.hash()
    assert config.difference(written) is None


def test_all_shipped_configurations_of_the_digits_are_resolved_and_read_back() -> None:
    changed = []
    for name in filter(lambda name: name.startswith("digits/"), shipped()):
        asks = {"method": {"share_representations": True}} if name.endswith("/mfcl") else {}
        config = load(name, asks)  # it asks for the user's word
        if resolve(tomllib.loads(config.to_toml())).tables != config.tables:
            changed.append(name)
    assert not changed


@pytest.mark.parametrize("table", ["run", "data", "partition", "local", "evaluate", "method"])
def test_another_experiment_has_another_hash_and_its_first_key_is_named(table: str) -> None:
    plain, other = resolve({}), resolve({table: CHANGED[table]})
    assert plain.hash() != other.hash()
    difference = other.difference(tomllib.loads(plain.to_toml()))
    assert difference is not None
    assert difference.startswith(f"{table}.{next(iter(CHANGED[table]))} ")


def test_a_run_from_before_some_keys_existed_is_the_same_experiment() -> None:
    """Its hash is the one it had, and it can be resumed; with a key set it is another."""
    plain, other = resolve({}), resolve({"net": {"unit_projection": True}})
    later = {
        "data": ("test",),
        "partition": ("balance",),
        "net": ("unit_projection", "peers", "groups", "precision"),
    }
    before = {
        name: {key: value for key, value in table.items() if key not in later.get(name, ())}
        for name, table in plain.tables.items()
        if name not in ("executor", "checkpoint", "record", "privacy")
    }
    digest = hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()
    assert plain.hash() == digest != other.hash()
    assert plain.difference(before) is None
    assert str(other.difference(before)).startswith("net.unit_projection is False there and True")


def test_a_difference_tells_both_values() -> None:
    written = tomllib.loads(resolve({}).to_toml())
    difference = resolve({"local": {"lr": 0.5}}).difference(written)
    assert difference is not None and "0.01" in difference and "0.5" in difference


@pytest.mark.parametrize(
    "changes",
    [
        {"executor": {"kind": "serial", "workers": 3}},
        {"checkpoint": {"every": 1}},
        {"record": {"to": ["tensorboard"]}},
    ],
)
def test_where_and_how_it_runs_is_not_part_of_the_experiment(changes: dict[str, Any]) -> None:
    plain, other = resolve({}), resolve(changes)
    assert plain.hash() == other.hash()
    assert other.difference(tomllib.loads(plain.to_toml())) is None


def test_a_configuration_carries_the_name_of_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[run]\nseed = 5\n")
    assert load(path).name == "mine" and load(path).run.seed == 5
    assert load("digits/fedavg").name == "digits/fedavg"
    assert resolve({}).name == "custom"


def test_the_kernel_is_written_as_it_was_chosen() -> None:
    config = resolve({"net": {"kernel": "auto"}})
    assert config.net.kernel == config.tables["net"]["kernel"] != "auto"


def own(config: Config) -> tuple[Any, Any]:
    return config.tables["method"], config.tables["objective"]


def test_a_method_of_a_shipped_configuration_brings_its_tables_into_the_setting() -> None:
    setting, moon = load("digits/fedavg"), load("digits/moon")
    changes = {"local": {"lr": 0.5}}
    config = method_config("moon", "digits/fedavg", changes, number=2)
    assert own(config) == own(moon) and config.name == "moon"
    assert config.local.lr == 0.5
    assert config.run.seed == setting.run.seed + 2
    assert config.tables["partition"] == setting.tables["partition"]


def test_a_method_without_a_shipped_configuration_is_taken_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nname = "mnist"\n[method]\nname = "moon"\n[run]\nseed = 4\n')
    config = method_config("fedprox", str(path), {}, number=0)
    assert config.method == FedProx() and config.run.seed == 4


@pytest.mark.parametrize(
    "text", ["a\x7fb", 'with "quotes"', "back\\slash", "line\nbreak", "Zürich"]
)
def test_any_text_survives_the_saved_file(text: str) -> None:
    tables = {"data": {"root": text}, "net": {"backbone": "own_parts:Net", "options": {text: text}}}
    config = resolve(tables)
    assert config.difference(tomllib.loads(config.to_toml())) is None
