"""Tables in files: sites by a column or by a file each, test rows, missing cells, Parquet."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from coterie.core.errors import ConfigError, CoterieError, DataError
from coterie.data import datasets
from coterie.data.datasets import Dataset
from coterie.data.table import TableOptions

HEADER = "age,sex,site,died"


def write(path: Path, sites: tuple[str, ...] = ("north", "south"), rows: int = 20) -> Path:
    """Rows of every site: ages from 0 on, both sexes, both labels."""
    lines = [HEADER]
    for number, site in enumerate(sites):
        lines += [
            f"{row + 100 * number},{'fm'[row % 2]},{site},{'yes' if row % 3 else 'no'}"
            for row in range(rows)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def load(root: Path, **options: Any) -> Dataset:
    given = {"label": "died", "site": "site", **options}
    return datasets.load("table", str(root), table=TableOptions(**given))


def test_a_file_is_divided_by_its_column_of_sites(tmp_path: Path) -> None:
    read = load(write(tmp_path / "all.csv"))
    assert read.groups is not None and read.groups.names == ("north", "south")
    assert read.class_names == ("no", "yes") and read.kind == "table"
    assert read.describe() == "tables with 2 columns (3 inputs), 2 classes"
    assert len(read.x_test) == 8 and len(read.x_train) == 32


def test_test_rows_have_no_part_in_the_statistics(tmp_path: Path) -> None:
    read = load(write(tmp_path / "all.csv"))
    assert np.allclose(read.x_train[:, 0].mean(), 0, atol=1e-6)
    assert np.allclose(read.x_train[:, 0].std(ddof=1), 1, atol=1e-6)
    assert abs(read.x_test[:, 0].mean()) > 1e-4


def test_a_folder_has_a_file_for_each_site_and_perhaps_its_test_rows(tmp_path: Path) -> None:
    for site in ("north", "south"):
        write(tmp_path / f"{site}.csv", (site,))
    write(tmp_path / "south_test.csv", ("south",), rows=6)
    read = load(tmp_path, site="")
    assert read.groups is not None and read.groups.names == ("north", "south")
    assert np.bincount(read.groups.test).tolist() == [4, 6]
    with pytest.raises(ConfigError, match=r"data.site = 'site' is for one file"):
        load(tmp_path)


def test_a_file_may_have_its_test_rows_in_another(tmp_path: Path) -> None:
    path, tests = write(tmp_path / "all.csv"), tmp_path / "later.csv"
    write(tests, ("south",), rows=6)
    read = load(path, test=str(tests))
    assert read.groups is not None and np.bincount(read.groups.train).tolist() == [20, 20]
    assert read.groups.test.tolist() == [1] * 6
    assert np.allclose(read.x_train[:, 0].mean(), 0, atol=1e-6)
    whole = load(path, site="", test=str(tests))
    assert (len(whole.x_train), len(whole.x_test), whole.groups) == (40, 6, None)
    dropped = load(path, test=str(tests), missing="drop")  # also where a site has no test rows
    assert len(dropped.x_test) == 6
    write(tests, ("south",), rows=9)  # a change is noticed
    assert len(load(path, test=str(tests)).x_test) == 9


def test_a_test_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path, tests = write(tmp_path / "all.csv"), write(tmp_path / "later.csv", ("east",))
    with pytest.raises(
        DataError, match=r"later.csv: the site 'east' has test rows and no training"
    ):
        load(path, test=str(tests))
    tests.write_text("age,sex,died\n3,f,no\n")
    with pytest.raises(DataError, match=r"later.csv: data.site='site' is no column"):
        load(path, test=str(tests))
    with pytest.raises(DataError, match=r"data.test = '.*missing.csv' is no file"):
        load(path, test=str(tmp_path / "missing.csv"))
    with pytest.raises(ConfigError, match=r"data.test = .* is a folder; put SITE_test.csv"):
        load(tmp_path, site="", test=str(tests))
    for name, kind in (("heart", "test rows of its own"), ("digits", "is for tables")):
        with pytest.raises(ConfigError, match=rf"data.test = 'x.csv'.* {kind}"):
            datasets.load(name, table=TableOptions(test="x.csv"))


def test_a_file_without_sites_has_no_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "all.csv")
    assert load(path, site="").groups is None
    with pytest.raises(ConfigError, match=r"data.standardise = 'site' needs sites"):
        load(path, site="", standardise="site")


def test_another_option_is_not_answered_from_the_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "all.csv")
    usual, plain = load(path), load(path, standardise="none")
    assert usual.fingerprint != plain.fingerprint
    assert plain.x_train[:, 0].max() > 100
    assert load(path).fingerprint == usual.fingerprint


def test_missing_cells_are_filled_in_dropped_or_refused_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "all.csv")
    lines = path.read_text().splitlines()
    lines[3], lines[5] = ",f,north,yes", "3,?,north,no"
    path.write_text("\n".join(lines))
    assert load(path).notes == (
        "1 missing cell filled in with the mean: age 1",
        "1 missing cell left without a value: sex 1",
    )
    dropped = load(path, missing="drop")
    assert dropped.notes == ("2 of 40 rows have a missing value and are left out",)
    assert len(dropped.x_train) + len(dropped.x_test) == 38
    with pytest.raises(DataError, match="site 'north', row 4, column 'age': the value is missing"):
        load(path, missing="refuse")


def test_a_site_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER}\n1,f,north,no\n,m,south,yes\n")
    with pytest.raises(DataError, match="site 'south': every row has a missing value"):
        load(path, missing="drop")


def test_parquet_files_are_the_same_tables(tmp_path: Path) -> None:
    from_csv = load(write(tmp_path / "all.csv"))
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()[1:]]
    age, *others = zip(*rows, strict=True)
    columns = {"age": list(map(int, age)), **dict(zip(HEADER.split(",")[1:], others, strict=True))}
    parquet.write_table(pyarrow.table(columns), tmp_path / "all.parquet")
    assert np.array_equal(load(tmp_path / "all.parquet").x_train, from_csv.x_train)
    (tmp_path / "bad.parquet").write_text("nothing")
    with pytest.raises(DataError, match="cannot be read as a Parquet file"):
        load(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; begin with a header"),
        ("1,2\n3,4\n", "has numbers only; begin with a header"),
        ("a;b\n1;2\n", "is separated by semicolons"),
        (",a\n1,2\n", "column 1 has no name; .* without an index"),
        ("a,a\n1,2\n", "has two columns 'a'"),
        ("a,b\n1\n", ":2 has 1 cells, and the header 2"),
        ("a,b\n", "has no row below its header"),
        ("a,died\n1,0.5\n2,1\n", "row 2, column 'died': the label is 0.5; .*regression.* not supp"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load(path, site="")


def test_a_cell_that_is_not_finite_is_named_with_its_site(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,site\n1,north\ninf,west\n")
    with pytest.raises(DataError, match="site 'west', row 3, column 'age': inf is no finite num"):
        datasets.load("table", str(path), table=TableOptions(site="site"))
    with pytest.raises(DataError, match=r"a\.csv, row 3, column 'age': inf is no finite number"):
        datasets.load("table", str(path))


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("", "data.root is empty"),
        ("nothing.csv", "nothing.csv does not exist; give one with data.root=FILE.csv"),
        ("a.txt", "is of no known kind"),
        (".", "contains no file .csv or .parquet"),
    ],
)
def test_where_there_is_no_table_the_path_is_named(tmp_path: Path, root: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(CoterieError, match=message):
        datasets.load("table", str(tmp_path / root) if root else "")


def test_keys_of_tables_are_refused_for_images() -> None:
    with pytest.raises(ConfigError, match=r"data.label = 'x' is for tables, .* 'digits' is none"):
        datasets.load("digits", table=TableOptions(label="x"))
    with pytest.raises(ConfigError, match=r"data.kind = 'image', and the data set 'heart' has tab"):
        datasets.load("heart", kind="image")
