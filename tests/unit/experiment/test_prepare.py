"""From a configuration to an experiment: data given in memory, and all that can be wrong."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from coterie.core.batch import Batch
from coterie.core.errors import ConfigError, DataError
from coterie.core.task import METHOD
from coterie.data.datasets import Groups
from coterie.executors.serial import Serial
from coterie.experiment import prepare as module
from coterie.experiment.config import load, resolve
from coterie.experiment.given import divide_sites
from coterie.experiment.prepare import (
    Experiment,
    make_executor,
    make_plan,
    make_player,
    prepare,
)
from coterie.kit.objective import Loss, Objective
from coterie.nets.build import Backbone
from coterie.nets.heads import Network

SITES = {"north": 10, "south": 20}


@final
@dataclass(frozen=True)
class Headless(Objective):
    """An objective without any head."""

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        return Network(backbone)

    def loss(self, net: Network, batch: Batch) -> Loss:
        return Loss(net(batch.x).h.mean())


def samples(count: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples that hold their own number, of two classes in turn."""
    numbers = np.arange(first, first + count)
    return np.repeat(numbers[:, None], 2, 1).astype(np.float32), numbers % 2


def sites(sizes: dict[str, int] = SITES) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The samples of every site: those of the second begin at 100, and so on."""
    return {name: samples(size, 100 * place) for place, (name, size) in enumerate(sizes.items())}


def make(folder: Path, **changes: dict[str, Any]) -> Experiment:
    """An experiment on the samples of two sites."""
    tables: dict[str, dict[str, Any]] = {
        "data": {"name": "given"},
        "net": {"backbone": "mlp", "norm": "none", "projection": 2},
        "executor": {"kind": "serial"},
        "evaluate": {"with": ["accuracy"]},
    }
    for name, change in changes.items():
        tables[name] = {**tables.get(name, {}), **change}
    return prepare(resolve(tables), folder, divide_sites(sites(), samples(8), seed=0))


def numbers(experiment: Experiment, part: str, client: int) -> list[int]:
    """The samples of a client, by their numbers."""
    shares = getattr(experiment.partition, part)[client]
    return sorted(getattr(experiment.dataset, f"x_{part}")[shares, 0].astype(int).tolist())


def test_without_test_samples_a_fifth_of_every_site_is_held_out() -> None:
    dataset, shares = divide_sites(sites(), None, seed=0)
    assert shares.names == ("north", "south")
    for client, size in enumerate(SITES.values()):
        train = dataset.x_train[shares.train[client], 0]
        test = dataset.x_test[shares.test[client], 0]
        assert len(test) == size // 5
        assert sorted([*train, *test]) == [100 * client + number for number in range(size)]
    labels = dataset.x_train[:, 0].astype(int) % 2
    assert dataset.y_train.tolist() == labels.tolist()


def test_what_is_held_out_follows_from_the_seed() -> None:
    held = [divide_sites(sites(), None, seed)[0].x_test[:, 0].tolist() for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def test_with_test_samples_all_others_are_trained_on() -> None:
    dataset, shares = divide_sites(sites(), samples(8), seed=0)
    assert {client: len(share) for client, share in shares.train.items()} == {0: 10, 1: 20}
    dealt = np.concatenate(list(shares.test.values()))
    assert sorted(dealt.tolist()) == list(range(8)) and len(dataset.y_test) == 8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no site"),
        (
            {"a": (np.zeros((3, 2)), np.zeros(4, int))},
            "the labels have 4 entries for 3",
        ),
        ({"a/b": samples(4)}, "'a/b'"),
        ({"": samples(4)}, "''"),
    ],
)
def test_sites_that_cannot_be_are_refused(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        divide_sites(given, None, seed=0)


def test_an_experiment_has_all_that_a_site_is_built_from(tmp_path: Path) -> None:
    experiment = make(tmp_path, run={"seed": 3, "rounds": 5, "device": "cpu"})
    spec = experiment.spec
    assert (spec.seed, spec.rounds, spec.device) == (3, 5, "cpu")
    assert (spec.shape, spec.classes, spec.folder) == ((2,), 2, str(tmp_path))
    assert spec.data == str(experiment.dataset.path)
    assert list(spec.evaluators) == ["accuracy"]
    assert not list(tmp_path.iterdir())  # nothing has been written


def test_the_summary_tells_who_holds_what(tmp_path: Path) -> None:
    summary = make(tmp_path).summary()
    assert [(c["name"], c["train"], c["classes"]) for c in summary["clients"]] == [
        ("north", 10, [5, 5]),
        ("south", 20, [10, 10]),
    ]
    assert summary["dataset"] == "given" and summary["classes"] == 2
    assert summary["fingerprint"] in summary["digest"]


def test_a_pooled_method_has_one_client_with_all_samples(tmp_path: Path) -> None:
    shares = make(tmp_path, method={"name": "centralized"}).partition
    assert shares.names == ("all",) and len(shares.train[0]) == 30


def test_arrays_of_a_python_program_are_asked_for_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Python"):
        prepare(resolve({"data": {"name": "given"}}), tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": {"device": "tpu"}}, ("run.device = 'tpu'",)),
        ({"executor": {"devices": ["meta"]}}, ("executor.devices = 'meta'",)),
        ({"data": {"augment": "simsiam"}}, ("data.augment = 'simsiam'",)),
        ({"data": {"holdout": 0.5}}, ("data.holdout", "0.5")),
        ({"net": {"backbone": "simple-cnn"}}, ("net.backbone = 'simple-cnn'", "(2,)")),
        ({"evaluate": {"with": ["personal_probe"]}}, ("'personal_probe'",)),
        ({"cohort": {"min_clients": 3}}, ("cohort.min_clients = 3", "2 clients")),
        (
            {"cohort": {"min_clients": 2, "fraction": 0.5}},
            ("cohort.min_clients = 2", "cohort.fraction"),
        ),
        (
            {"method": {"name": "toy_methods:Staged", "delta": 0.5}},
            ("'upload'", "2", "quorum"),
        ),
        (
            {"method": {"name": "solo"}, "record": {"embedding": 9}},
            ("record.embedding", "method.name = 'solo'"),
        ),
        (
            {"objective": {"name": "test_prepare:Headless"}},
            ("'accuracy'", "classifier", "objective.name = 'test_prepare:Headless'"),
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(
    changes: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        make(tmp_path / "run", **changes)
    assert all(word in str(raised.value) for word in words)
    assert not (tmp_path / "run").exists()


def test_a_network_that_sees_plain_pixels_needs_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "unit_images", True)
    with pytest.raises(ConfigError, match=r"method\.name = 'fedavg'.*images.*\(2,\)"):
        make(tmp_path)


def test_a_network_that_memory_does_not_hold_is_a_matter_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> Network:
        raise RuntimeError("can't allocate memory\nmore")

    monkeypatch.setattr(Headless, "build", build)
    objective = {"name": "test_prepare:Headless"}
    with pytest.raises(ConfigError, match=r"\[net\].*can't allocate memory$"):
        make(tmp_path, objective=objective, evaluate={"with": []})


def test_the_server_tests_on_all_test_samples_in_a_drawn_order(tmp_path: Path) -> None:
    data: Any = make_plan(make(tmp_path), tmp_path).evaluation.data
    (batch,) = data.sweep(test=True)
    drawn = batch.x[:, 0].tolist()
    assert sorted(drawn) == list(range(8)) != drawn
    assert len(data) == 30


def test_the_server_tests_on_samples_that_no_client_holds_where_there_are_some(
    tmp_path: Path,
) -> None:
    experiment = make(tmp_path)
    groups = Groups(np.zeros(30, np.int64), np.array([-1, 0, 0, -1, 0, 0, 0, 0]), ("a",))
    experiment = replace(experiment, dataset=replace(experiment.dataset, groups=groups))
    (batch,) = make_plan(experiment, tmp_path).evaluation.data.sweep(test=True)
    assert sorted(batch.x[:, 0].tolist()) == [0, 3]


def test_samples_that_were_set_aside_are_the_holdouts_test_samples(tmp_path: Path) -> None:
    experiment = make(tmp_path)
    assert make_plan(experiment, tmp_path).evaluation.holdout is None
    held = replace(experiment, holdout=np.array([2, 5, 7]))
    holdout: Any = make_plan(held, tmp_path).evaluation.holdout
    (batch,) = holdout.sweep(test=True)
    expected = experiment.dataset.x_train[[2, 5, 7], 0].tolist()
    assert sorted(batch.x[:, 0].tolist()) == sorted(expected)


def test_a_plan_knows_what_exact_bits_depend_on(tmp_path: Path) -> None:
    plain = make_plan(make(tmp_path, net={"kernel": "torch"}), tmp_path).environment
    assert "torch" in plain and "kernels" not in plain


def test_a_serial_executor_answers_for_everyone(tmp_path: Path) -> None:
    executor = make_executor(make(tmp_path))
    assert isinstance(executor, Serial)
    assert [(info.name, info.examples) for info in executor.clients()] == list(SITES.items())


@pytest.mark.parametrize(("workers", "cores", "expected"), [(0, 1, 1), (0, 9, 2), (7, 1, 2)])
def test_there_are_no_more_workers_than_clients_and_no_site_in_this_process(
    workers: int,
    cores: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "Processes", lambda *_, **options: calls.append(options))
    monkeypatch.setattr(module, "Site", None)
    monkeypatch.setattr(module.exact, "cores", lambda: cores)
    executor = {"kind": "processes", "workers": workers, "timeout": 3.0, "devices": ["cpu"]}
    make_executor(make(tmp_path, executor=executor))
    assert calls == [{"workers": expected, "devices": ["cpu"], "timeout": 3.0}]


def test_a_player_for_trials_plays_in_this_process(tmp_path: Path) -> None:
    experiment = make(tmp_path, server={"optimizer": "momentum"})
    player = make_player(experiment)
    assert isinstance(player.executor, Serial)
    assert player.optimizer == experiment.config.server
    assert player.parts.nets(METHOD) is experiment.parts.nets(METHOD)


def test_views_that_do_not_fit_the_data_name_those_that_do(tmp_path: Path) -> None:
    config = load("digits/simsiam", {"data.name": "heart"})
    assert config.data.augment == "resized-crop"
    with pytest.raises(ConfigError, match=r"'resized-crop' takes images.*; use data\.augment=auto"):
        prepare(config, tmp_path)
