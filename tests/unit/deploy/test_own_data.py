"""A site's own data: how they are found, told of, and numbered."""

from pathlib import Path

import fleet
import numpy as np
import pytest

from coterie.core.errors import ConfigError, DataError
from coterie.deploy import own_data
from coterie.deploy.handshake import Declined, make_common
from coterie.deploy.own_data import OwnData
from coterie.experiment.config import Config, resolve
from coterie.experiment.prepare import prepare


def common(**changes: dict[str, object]) -> Config:
    return make_common(resolve(fleet.tables("", **changes)))


def test_a_site_has_the_samples_that_it_has_in_a_simulation(tmp_path: Path) -> None:
    root = fleet.write_sites(tmp_path / "sites")
    whole = prepare(resolve(fleet.tables(root)), tmp_path)
    for client, name in enumerate(fleet.NAMES):
        alone = OwnData(str(root / f"{name}.npz")).load(common())
        numbered = own_data.number_classes(alone, whole.dataset.class_names)
        train, test = whole.partition.train[client], whole.partition.test[client]
        assert np.array_equal(numbered.x_train, whole.dataset.x_train[train])
        assert np.array_equal(numbered.y_train, whole.dataset.y_train[train])
        assert np.array_equal(numbered.y_test, whole.dataset.y_test[test])


def test_the_kind_of_data_follows_from_the_path(tmp_path: Path) -> None:
    for name in ("a.npz", "b.csv", "c.txt"):
        (tmp_path / name).touch()
    found = [own_data.choose_source(str(tmp_path / name)) for name in ("a.npz", "b.csv", "")]
    assert found == ["arrays", "table", "folder"]
    for name, reason in (("c.txt", "of no known kind"), ("d", "is not there")):
        with pytest.raises(DataError, match=reason):
            own_data.choose_source(str(tmp_path / name))


def test_a_card_counts_what_is_trained_on(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 4)), np.array([0, 1, -1, -1] * 5)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    loaded = OwnData(str(tmp_path / "a.npz")).load(common())
    card = own_data.make_card(common(), loaded)
    assert (card.train, card.test, card.classes, card.labelled) == (10, 4, (0, 1), True)
    with pytest.raises(Declined, match="the class 1; the run has: 0, 2"):
        own_data.make_card(common(), loaded, (0, 2))


def test_a_site_without_labels_takes_no_part_in_supervised_training(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 4)))
    loaded = OwnData(str(tmp_path / "a.npz")).load(common())
    with pytest.raises(Declined, match=r"0 labelled training samples"):
        own_data.make_card(common(), loaded)


def write_table(folder: Path) -> OwnData:
    rows = "\n".join(f"{n}.5,{n % 3},{n % 2}" for n in range(20))
    (folder / "a.csv").write_text(f"age,score,ill\n{rows}\n")
    return OwnData(str(folder / "a.csv"))


def test_a_table_tells_of_its_columns_and_not_of_its_cells(tmp_path: Path) -> None:
    own = write_table(tmp_path)
    assert own.is_table and not OwnData("digits", "digits").is_table
    config = common(data={"label": "ill", "categorical": ["score"]})
    card = own_data.make_card(config, own.read_table(config))
    assert card.form is None and card.table is not None
    assert card.table.rows == card.train == 16
    kinds = [(column.name, column.kind, column.bare) for column in card.table.columns]
    assert kinds == [("age", "number", False), ("score", "category", False)]


def test_keys_that_are_not_for_tables_are_refused(tmp_path: Path) -> None:
    own = write_table(tmp_path)
    with pytest.raises(ConfigError, match=r"data.resize=8 is for image files"):
        own.read_table(common(data={"resize": 8}))
    with pytest.raises(ConfigError, match=r"data.kind = 'image', and .* is a table"):
        own.read_table(common(data={"kind": "image"}))
    config = common()
    with pytest.raises(Declined, match=r"0 labelled .* the server has no data.label"):
        own_data.make_card(config, own.read_table(config))
    with pytest.raises(Declined, match="the tables of 'heart' cannot be deployed"):
        OwnData("heart", "heart").load(common())
