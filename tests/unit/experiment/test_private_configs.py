"""Which configurations may be private: the others are one line that says what would come out."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.core.errors import ConfigError
from coterie.experiment.config import Config, resolve
from coterie.experiment.prepare import prepare as prepare_run

PRIVATE: dict[str, Any] = {"clip": 1.0, "noise": 1.0}
ON_SERVER: dict[str, Any] = {"with": ["accuracy"]}


def config(**tables: Any) -> Config:
    return resolve({"privacy": PRIVATE, "evaluate": ON_SERVER, **tables})


def test_it_is_off_unless_the_clip_norm_is_set() -> None:
    assert resolve({}).privacy.clip == 0.0


def test_runs_without_privacy_have_the_hash_that_they_had_before_there_was_any() -> None:
    plain = resolve({})
    before = {name: table for name, table in plain.tables.items() if name != "privacy"}
    assert plain.difference(before) is None
    assert "privacy.clip is 0.0 there and 1.0 here" in str(config().difference(before))
    assert config().hash() != resolve({"evaluate": ON_SERVER}).hash()


@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "moon", "la_ssfl", "maml_ssfl", "per_ssfl", "bilevel_ssfl"]
)
def test_methods_that_send_weights_alone_may_be_private(name: str) -> None:
    supervised = name in ("fedavg", "fedprox", "moon")
    objective = {"name": "supervised" if supervised else "simsiam"}
    evaluate = {"with": ["accuracy" if supervised else "knn"]}
    config(method={"name": name}, objective=objective, evaluate=evaluate)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"name": "scaffold"}, "sends 'control' in the stage 'train'"),
        ({"name": "fedproc"}, "sends 'class_"),
        ({"name": "fedssc"}, "sends 'class_counts' and 'class_means' in the stage"),
        ({"name": "solo"}, "sends no mean of weights in the stage 'train'"),
        ({"name": "centralized"}, "merges all clients into one"),
        ({"name": "mfcl", "share_representations": True}, "sends 'sensor' in the stage 'sense'"),
        ({"name": "orchestra"}, "sends 'local_centroids'"),
    ],
)
def test_methods_that_send_more_are_refused(method: dict[str, Any], words: str) -> None:
    own = method["name"] in ("mfcl", "orchestra")
    objective = {"name": {"mfcl": "simclr", "orchestra": "rotation"}[method["name"]]} if own else {}
    evaluate = {"with": ["knn"]} if own else ON_SERVER
    with pytest.raises(ConfigError, match=words) as said:
        config(method=method, objective=objective, evaluate=evaluate)
    assert f"method.name = {method['name']!r}" in str(said.value)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"evaluate": {"with": ["accuracy", "personal"]}}, "'personal' is measured by clients"),
        ({"evaluate": {"with": ["ccvr"]}}, "'ccvr' is measured by clients"),
        ({"evaluate": {"with": ["federated_probe"]}}, "'federated_probe' is measured by clients"),
        ({"cohort": {"min_clients": 3}}, "cohort.min_clients = 3 would skip rounds"),
        ({"record": {"embedding": 100}}, "record.embedding shows training samples"),
        ({"privacy": {"clip": 1.0}}, "privacy.clip = 1 needs privacy.noise of 0.1 or more"),
        ({"privacy": {"clip": 1.0, "noise": 0.05}}, "needs privacy.noise of 0.1 or more, not 0.05"),
        ({"privacy": {"noise": 1.0}}, "privacy.noise = 1 does nothing without privacy.clip"),
        ({"privacy": {"epsilon": 8.0}}, "privacy.epsilon = 8 does nothing without privacy.clip"),
        ({"privacy": {**PRIVATE, "delta": 0.0}}, "privacy.delta = 0.0"),
        ({"privacy": {**PRIVATE, "delta": 1.0}}, "privacy.delta = 1.0"),
        ({"privacy": {**PRIVATE, "clip": -1.0}}, "privacy.clip = -1.0"),
        ({"privacy": {**PRIVATE, "accountant": "prv"}}, "privacy.accountant = 'prv'"),
    ],
)
def test_what_privacy_does_not_cover_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**tables)


def prepare(data: Path, folder: Path, **changes: Any) -> tuple[str, ...]:
    tables = {"privacy": PRIVATE, "evaluate": ON_SERVER, **changes}
    return toy.prepared(data, folder, **tables).notes


def test_the_start_says_the_terms_and_epsilon_at_the_end(toy_data: Path, tmp_path: Path) -> None:
    (note,) = prepare(toy_data, tmp_path / "run", cohort={"fraction": 0.5})
    assert note == (
        "differential privacy for clients: updates clipped to 1, noise 1, each client in a round "
        "with probability 0.5: epsilon 7.41 at delta 1e-05 after 4 rounds"
    )
    (note,) = prepare(
        toy_data,
        tmp_path / "run",
        cohort={"fraction": 0.5},
        privacy={**PRIVATE, "epsilon": 6.5},
    )
    assert note.endswith("after 3 rounds of 4, as many as privacy.epsilon = 6.5 allows")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"privacy": {**PRIVATE, "epsilon": 1.0}},
            "does not allow one round: it takes privacy.noi",
        ),
        ({"privacy": {**PRIVATE, "delta": 0.2}}, "allows the publication of one of 6 clients"),
        ({"net": {"norm": "bn"}}, "running_mean' is a statistic that bears none"),
        (
            {
                "privacy": {**PRIVATE, "epsilon": 8.0},
                "evaluate": {"with": ["accuracy"], "last": ["knn"]},
            },
            "evaluate.last waits for round 4, and privacy.epsilon = 8 allows 2 rounds",
        ),
    ],
)
def test_a_run_that_cannot_be_private_is_refused_before_training(
    changes: dict[str, Any], words: str, toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(toy_data, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_batch_norm_whose_statistics_stay_with_clients_is_fine(
    toy_data: Path, tmp_path: Path
) -> None:
    assert prepare(toy_data, tmp_path / "run", net={"norm": "bn", "bn_buffers": "local"})


def test_means_of_columns_are_statistics_without_noise(tmp_path: Path) -> None:
    rows = [f"{i % 2},{i / 7:.3f},{i % 3},{'ab'[i // 30]}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["y,one,two,site", *rows]))
    data = {"name": "table", "root": str(tmp_path / "rows.csv"), "label": "y", "site": "site"}
    partition = {"kind": "by-group"}
    words = "data.standardise=none and data.missing=drop or refuse"
    tables = toy.tables(tmp_path, privacy=PRIVATE, evaluate=ON_SERVER)
    tables |= {"data": data, "partition": partition}
    with pytest.raises(ConfigError, match=words):
        prepare_run(resolve(tables), tmp_path / "run")
    tables["data"] = {**data, "standardise": "none", "missing": "refuse"}
    assert prepare_run(resolve(tables), tmp_path / "run")


def test_a_missing_package_is_named_before_the_run(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "dp_accounting" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[privacy\]'"):
        prepare(toy_data, tmp_path / "run")
    config()  # a client of a deployed run resolves it too, and counts nothing
