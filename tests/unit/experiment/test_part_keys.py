"""Keys that are read from the source are those of the classes."""

from dataclasses import fields

import pytest

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.experiment.evaluators import EvaluatorEntry
from coterie.experiment.own import GIVEN
from coterie.experiment.part_keys import check_entry, check_name, check_part, read_fields

FOLDERS = ("methods", "objectives", "evaluate")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_fields_in_the_source_are_the_fields_of_the_class(folder: str) -> None:
    for name in registry.names(folder):
        kind = registry.find(folder, name, object, "name")
        assert read_fields(folder, name) == tuple(field.name for field in fields(kind)), name


def test_keys_of_a_file_are_not_held_against_another_part() -> None:
    file = {"name": "moon", "mu": 1.0}
    check_part("method", file, {"name": "fedprox", "mu": 0.1})
    check_part("method", file, {"name": "fedavg"})
    check_part("method", file, {"name": "own:Class", "anything": 1})
    with pytest.raises(ConfigError, match="method has no key 'mu'; fedavg takes: no key"):
        check_part("method", file, {"name": "fedavg", "mu": 1.0})


def test_an_alias_takes_the_keys_of_its_evaluator() -> None:
    check_entry(EvaluatorEntry("evaluate.with", "probe_1", {"as": "few", "layer": "z"}))
    check_entry(EvaluatorEntry("evaluate.with", "own:Class", {"anything": 1}))
    with pytest.raises(ConfigError, match=r"evaluate\.with: probe_1 has no key 'k'"):
        check_entry(EvaluatorEntry("evaluate.with", "probe_1", {"k": 5}))


def test_a_data_set_or_backbone_is_a_file_or_the_users_own() -> None:
    for table, name in (("data", "table"), ("data", "own:Data"), ("data", GIVEN), ("net", "mlp")):
        check_name(table, name)
    with pytest.raises(ConfigError, match=r"net\.backbone = 'given' is not known"):
        check_name("net", GIVEN)
