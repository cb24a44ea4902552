"""Entries of `evaluate.with`: names, tables and objects, their keys, and what is refused."""

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from subprocess import run as start
from typing import Any, final

import pytest

import toy
from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.evaluate.accuracy import Accuracy
from coterie.evaluate.ccvr import CCVR
from coterie.evaluate.federated_probe import FederatedProbe
from coterie.evaluate.geometry import Geometry
from coterie.evaluate.knn import Knn
from coterie.evaluate.own_sensors import OwnSensors
from coterie.evaluate.probe import Probe
from coterie.experiment.config import Config, resolve
from coterie.experiment.evaluators import names
from coterie.experiment.tables import parse_overrides
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class Constant(Evaluator):
    """An own evaluator that names its metric itself."""

    value: float = 0.5
    weights: tuple[int, ...] = ()

    def __call__(self, net: Frozen, data: Shard, seed: int) -> dict[str, float]:
        return {"constant": self.value + sum(self.weights)}


@final
@dataclass(frozen=True)
class Keyed(Evaluator):
    """An own evaluator whose metric carries its key."""

    value: float
    key: str = "keyed"

    def __call__(self, net: Frozen, data: Shard, seed: int) -> dict[str, float]:
        return {self.key: self.value}


CONSTANT, KEYED = f"{__name__}:Constant", f"{__name__}:Keyed"


def read(*entries: Any, last: Any = ()) -> Config:
    return resolve({}, {"evaluate": {"with": list(entries), "last": list(last)}})


def written(config: Config) -> Any:
    return config.tables["evaluate"]["with"]


def test_the_old_names_are_entries() -> None:
    made = read(*(name for name in names() if name != "probe")).evaluators
    assert made == {
        "accuracy": Accuracy(),
        "ccvr": CCVR(),
        "federated_probe": FederatedProbe(),
        "geometry": Geometry(),
        "knn": Knn(),
        "linear_probe": Probe(),
        "naive_probe": FederatedProbe(own_models=True, key="naive_probe"),
        "own_probe": Probe(where="client", key="own_probe"),
        "own_sensors": OwnSensors(),
        "personal": Accuracy(where="client"),
        "personal_knn": Knn(where="client"),
        "personal_probe": Probe(where="client", data="all"),
        "probe_1": Probe(labels=0.01, key="probe_1"),
        "probe_10": Probe(labels=0.1, key="probe_10"),
        "projection_knn": Knn(layer="z", key="projection_knn"),
        "projection_probe": Probe(layer="z", key="projection_probe"),
    }


def test_names_and_tables_are_mixed_and_stay_as_they_were_given() -> None:
    entries = ["accuracy", {"name": "probe", "labels": 0.01}, {"name": "knn", "k": 20}]
    config = read(*entries, last=[{"name": "knn", "as": "z_knn", "layer": "z"}])
    assert written(config) == entries
    assert config.tables["evaluate"]["last"] == [{"name": "knn", "as": "z_knn", "layer": "z"}]
    assert config.evaluate.evaluators == ("accuracy", "probe", "knn")
    assert config.evaluate.last == ("z_knn",)
    assert config.evaluators["z_knn"] == Knn(layer="z", key="z_knn")


@pytest.mark.parametrize(
    ("entry", "shortest"),
    [
        ({"name": "knn"}, "knn"),
        ({"name": "knn", "k": 200, "as": "knn"}, "knn"),
        ({"name": "probe_1", "labels": 0.01}, "probe_1"),
        ({"name": "probe_1", "labels": 1}, {"name": "probe_1", "labels": 1.0}),
        ({"layer": "z", "k": 5, "name": "knn"}, {"name": "knn", "k": 5, "layer": "z"}),
        ({"name": "linear_probe", "as": "probe"}, {"name": "linear_probe", "as": "probe"}),
        ({"name": "own_probe", "as": "probe"}, {"name": "own_probe", "as": "probe"}),
        ({"name": CONSTANT, "weights": [1, 2]}, {"name": CONSTANT, "weights": [1, 2]}),
        ({"name": KEYED, "value": 2}, {"name": KEYED, "value": 2.0}),
    ],
)
def test_what_is_written_is_short_and_reads_back_to_the_same_experiment(
    entry: dict[str, Any], shortest: Any
) -> None:
    config = read(entry)
    assert written(config) == [shortest]
    again = resolve(tomllib.loads(config.to_toml()))
    assert again.tables == config.tables and again.hash() == config.hash()
    assert again.evaluators == config.evaluators


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("evaluate.with=accuracy", ["accuracy"]),
        ('evaluate.with={name="knn",k=5}', [{"name": "knn", "k": 5}]),
        ('evaluate.with=[{name="knn",k=5}, "accuracy"]', [{"name": "knn", "k": 5}, "accuracy"]),
    ],
)
def test_the_command_line_takes_one_entry_or_a_list(word: str, expected: list[Any]) -> None:
    assert written(resolve({}, parse_overrides([word]))) == expected


def test_python_gives_objects_and_classes() -> None:
    mine = Keyed(3.0, key="mine")
    config = read("accuracy", Knn(k=20), Probe(where="client", key="own"), mine, Constant)
    assert written(config) == [
        "accuracy",
        {"name": "knn", "k": 20},
        {"name": "probe", "as": "own", "where": "client"},
        {"name": KEYED, "as": "mine", "value": 3.0},
        CONSTANT,
    ]
    assert config.evaluators["mine"] == mine
    assert written(resolve({}, {"evaluate": {"with": Knn(k=3)}})) == [{"name": "knn", "k": 3}]


@pytest.mark.parametrize(
    ("entries", "last", "text"),
    [
        (["knn", "knn"], [], "evaluate.with = 'knn' is named twice"),
        (["knn", {"name": "knn", "k": 5}], [], 'e.g. { name = "knn", as = "knn_2" }'),
        (["knn"], ["knn"], "evaluate.last = 'knn' is named twice (also in evaluate.with)"),
        (["probe_1"], [{"name": "probe", "as": "probe_1"}], "'probe_1' is named twice"),
        (["probe", "linear_probe"], [], "'probe' and 'linear_probe' give the same metrics"),
        (["personal_probe", {"name": "probe", "where": "client"}], [], "('client_probe')"),
        ([{"name": CONSTANT, "as": "mine"}], [], "needs a field `key: str`"),
        ([{"name": CONSTANT, "valu": 1}], [], f"no key 'valu'; did you mean 'value'? {CONSTANT}"),
        ([{"name": CONSTANT, "value": "x"}], [], "Constant.value = 'x': input should be"),
        ([KEYED], [], "field required"),
    ],
)
def test_what_cannot_be_is_said(entries: list[Any], last: list[Any], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(*entries, last=last)
    assert text in str(raised.value) and "\n" not in str(raised.value)


def test_metrics_carry_the_key(toy_data: Path, tmp_path: Path) -> None:
    """On the server, on clients, in rounds of their own; and after the last round alone."""
    entries = [
        {"name": "accuracy", "as": "top"},
        {"name": "accuracy", "where": "client", "as": "own"},
        {"name": "knn", "k": 3, "as": "few"},
        {"name": "personal_knn", "k": 3, "as": "mine"},
        {"name": KEYED, "value": 0.25, "as": "quarter"},
        {"name": CONSTANT, "weights": [1, 2]},
    ]
    chosen = {"with": entries, "last": [{"name": "federated_probe", "rounds": 2, "as": "two"}]}
    result = toy.run(toy_data, tmp_path, run={"rounds": 2}, evaluate=chosen)
    first, last = ({*event.metrics} for event in result.history)
    over = ("mean", "std", "worst_decile")
    expected = {"top", "top_loss", "few", "few_bank", "quarter", "constant"}
    expected |= {f"client_{key}_{one}" for key in ("own", "mine") for one in over}
    expected |= {"client_own_loss_mean", "client_mine_bank"}
    expected |= {"top_balanced_accuracy", "client_own_balanced_accuracy_mean"}
    assert {name for name in first if not name.startswith("train_")} == expected
    assert last - first == {"two", "two_labels"}
    assert result.metrics["quarter"] == 0.25 and result.metrics["constant"] == 3.5


def test_a_run_with_fields_gives_the_same_bits_in_workers(toy_data: Path, tmp_path: Path) -> None:
    entries = [{"name": "personal_knn", "k": 3}, {"name": CONSTANT, "weights": [1]}]
    changes: dict[str, Any] = {"run": {"rounds": 1}, "evaluate": {"with": entries}}
    toy.run(toy_data, tmp_path / "serial", **changes)
    changes["executor"] = {"kind": "processes", "workers": 2}
    toy.run(toy_data, tmp_path / "two", **changes)
    assert toy.trace(tmp_path / "two") == toy.trace(tmp_path / "serial")


def test_entries_are_read_without_torch() -> None:
    code = (
        "import sys; from coterie.experiment.evaluators import read_entries; "
        "read_entries({'with': ['knn', {'name': 'probe', 'labels': 0.1}]}); "
        "sys.exit('torch' in sys.modules)"
    )
    assert start([sys.executable, "-c", code], check=False).returncode == 0


def test_the_key_of_a_shipped_evaluator_is_the_name_of_its_file() -> None:
    made: dict[str, Any] = dict(read(*registry.names("evaluate")).evaluators)
    assert {name: evaluator.key for name, evaluator in made.items()} == {
        name: name for name in registry.names("evaluate")
    }


def test_a_metric_that_no_evaluator_measures_is_an_error_with_the_nearest_one() -> None:
    chosen = {"with": ["accuracy", "personal"]}
    with pytest.raises(ConfigError, match=r"'acuracy' is measured by no .*did you mean 'accuracy'"):
        resolve({}, {"evaluate": {**chosen, "metric": "acuracy"}})
    with pytest.raises(ConfigError, match=r"'nothing' is measured by no .*there are: accuracy, "):
        resolve({"evaluate": {**chosen, "metric": "nothing"}})


@pytest.mark.parametrize(
    "metric",
    ["balanced_accuracy", "client_auroc_mean", "accuracy_std", "holdout_accuracy", "train_steps"],
)
def test_every_metric_that_a_run_may_have_can_judge_it(metric: str) -> None:
    table = {"with": ["accuracy", "personal"], "metric": metric}
    assert resolve({"evaluate": table}).evaluate.metric == metric


def test_the_metric_of_an_own_evaluator_is_not_known_before_the_run() -> None:
    table = {"with": ["accuracy", CONSTANT], "metric": "constant"}
    assert resolve({"evaluate": table}).evaluate.metric == "constant"


def test_the_metric_of_a_file_gives_way_to_other_evaluators() -> None:
    file = {"objective": {"name": "simsiam"}, "evaluate": {"with": ["knn"], "metric": "knn"}}
    config = resolve(file, {"evaluate": {"with": ["geometry"]}})
    assert config.evaluate.metric == "feature_std"
    assert "evaluate.metric = 'feature_std' instead of 'knn'" in config.notes


def test_evaluators_report_the_metrics_that_they_name(tmp_path: Path) -> None:
    chosen = [name for name in names() if name != "linear_probe"]  # the metric of `probe` too
    data = toy.write_data(tmp_path / "toy.npz")
    result = toy.run(data, tmp_path / "run", run={"rounds": 1}, evaluate={"with": chosen})
    named = {name for part in read(*chosen).evaluators.values() for name in part.metrics}
    reported = {name for name in result.metrics if not name.startswith("train_")}
    assert named - reported <= {"auroc", "client_auroc_mean"}  # those of two classes
    assert reported <= named
