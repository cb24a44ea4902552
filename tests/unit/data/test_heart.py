"""Heart disease at four hospitals: FLamby's patients, inputs and test set."""

import csv
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.core.errors import ConfigError
from coterie.data import datasets
from coterie.data.encoding import TableColumn, encode
from coterie.data.formats import tables
from coterie.data.table import TableOptions
from coterie.experiment.config import resolve
from coterie.experiment.load_data import load_data

FOLDER = Path(coterie.__file__).parent / "data" / "heart"
OWN = TableOptions(standardise="site")


def read_patients(name: str) -> np.ndarray:
    """The 13 inputs of FLamby, before they are standardised, and the diagnosis."""
    with (FOLDER / f"{name}.csv").open() as stream:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(stream))[1:]]
    kept = [row[:10] + row[13:] for row in rows if -9.0 not in row[:10]]
    return np.array(
        [
            [*r[:2], *(r[2] == k for k in (2, 3, 4)), *r[3:6], *(r[6] == k for k in (1, 2)), *r[7:]]
            for r in kept
        ]
    )


def test_the_patients_are_those_of_flamby() -> None:
    heart = datasets.load("heart")
    assert heart.groups is not None
    assert heart.groups.names == ("cleveland", "hungarian", "switzerland", "va")
    assert (len(heart.x_train), len(heart.x_test), heart.shape) == (486, 254, (13,))
    both = np.bincount(heart.groups.train) + np.bincount(heart.groups.test)
    assert both.tolist() == [303, 261, 46, 130]
    assert heart.class_names == ("healthy", "disease")


@pytest.mark.parametrize("hospital", range(4))
def test_each_hospital_is_standardised_by_its_training_patients(hospital: int) -> None:
    heart = datasets.load("heart", table=OWN)
    assert heart.groups is not None
    patients = read_patients(heart.groups.names[hospital])
    train = heart.groups.train == hospital
    test = heart.groups.test == hospital
    means = [column["mean"][heart.groups.names[hospital]] for column in heart.columns]
    spread = [column["deviation"][heart.groups.names[hospital]] for column in heart.columns]
    flat = [np.concatenate([np.atleast_1d(v) for v in values]) for values in (means, spread)]
    back = np.concatenate([heart.x_train[train], heart.x_test[test]]) * flat[1] + flat[0]
    expected = patients[:, :13]
    assert np.allclose(sorted(back.tolist()), sorted(expected.tolist()), atol=1e-3)
    own = heart.x_train[train]
    assert np.allclose(own.mean(axis=0), 0, atol=1e-5)
    varied = own.std(axis=0) > 0
    assert np.allclose(own.std(axis=0, ddof=1)[varied], 1, atol=1e-5)


def test_flambys_test_set_is_standardised_by_all_hospitals_and_theirs_by_their_own() -> None:
    theirs = datasets.load("flamby-heart", table=OWN)
    pooled, own = datasets.load("heart"), datasets.load("heart", table=OWN)
    assert np.array_equal(theirs.x_train, own.x_train)
    assert np.array_equal(theirs.x_test, np.concatenate([pooled.x_test, own.x_test]))
    assert theirs.groups is not None and (theirs.groups.test[:254] == -1).all()
    with pytest.raises(ConfigError, match=r"data.standardise = 'federated', and .* use 'site'"):
        datasets.load("flamby-heart")


@pytest.mark.parametrize("name", ["heart", "flamby-heart"])
def test_patients_with_a_missing_value_cannot_be_treated_otherwise(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"data.missing = 'refuse', and .* '{name}' is defined"):
        datasets.load(name, table=TableOptions(standardise="site", missing="refuse"))
    assert datasets.settle_missing(name, OWN) == "drop"


def test_a_column_keeps_the_number_that_stands_for_a_missing_value() -> None:
    columns = tuple(map(TableColumn.from_plain, datasets.load("heart").columns))
    assert {column.gaps for column in columns} == {(-9.0,)}
    stored = tables.read(FOLDER / "va.csv")
    gaps = stored.columns["trestbps"] == -9.0
    assert gaps.any()
    position = [column.name for column in columns].index("trestbps") + 2  # cp has three inputs
    inputs = encode(columns, stored)[:, position]
    assert (inputs[gaps] == 0.0).all() and (inputs[~gaps] != 0.0).all()


@pytest.mark.parametrize("name", ["heart", "flamby-heart"])
@pytest.mark.parametrize("key", ["label", "site", "categorical"])
def test_columns_that_are_known_cannot_be_stated(name: str, key: str, tmp_path: Path) -> None:
    value = ("cp",) if key == "categorical" else "cp"
    stated = TableOptions(standardise="site", **{key: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"data\.{key} = .* are known; leave it out"):
        datasets.load(name, cache=tmp_path, table=stated)


@pytest.mark.parametrize("name", ["digits", "heart", "flamby-heart"])
def test_data_that_are_installed_have_no_folder(name: str) -> None:
    config = resolve({"data": {"name": name, "root": "here"}})
    with pytest.raises(ConfigError, match=r"data\.root = 'here' has no effect: .*leave it out"):
        load_data(config, None)
