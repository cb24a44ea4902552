"""Columns of tables as inputs, against plain numpy; what is refused, by site, row and column."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie.core.errors import ConfigError, CoterieError, DataError
from coterie.data.encoding import (
    TableColumn,
    clear_gaps,
    encode,
    find_kinds,
    fit_columns,
    is_missing,
    stack_numbers,
)
from coterie.data.table import Table, make_table, read_frame, split_by_site, write_value


def table(origin: str = "site 'north'", **columns: Any) -> Table:
    rows = len(next(iter(columns.values())))
    return make_table(columns, range(2, rows + 2), origin)


NORTH = table(age=["30", "", "50", "61.5"], sex=["f", "m", "f", ""])
SOUTH = table("site 'south'", age=["1000000.1", "1000000.2", "NA"], sex=["x", "m", "m"])
SITES = {"north": NORTH, "south": SOUTH}
AGES = {"north": [30, 50, 61.5], "south": [1000000.1, 1000000.2]}


def fit(standardise: Any = "federated", **options: Any) -> tuple[TableColumn, ...]:
    return fit_columns(SITES, find_kinds(list(SITES.values())), standardise, **options)


def test_federated_statistics_are_those_of_all_rows_in_one_place() -> None:
    age, sex = fit()
    everyone = np.concatenate(list(AGES.values()))
    assert age.mean is not None and age.deviation is not None
    assert np.isclose(age.mean[""][0], everyone.mean(), rtol=1e-12)
    assert np.isclose(age.deviation[""][0], everyone.std(ddof=1), rtol=1e-12)
    assert age.filling == age.mean
    assert sex.values == ("f", "m", "x") and sex.mean is None


def test_statistics_of_a_site_are_its_own() -> None:
    age = fit("site")[0]
    assert age.mean is not None and age.deviation is not None
    for site, values in AGES.items():
        assert np.isclose(age.mean[site][0], np.mean(values), rtol=1e-12)
        assert np.isclose(age.deviation[site][0], np.std(values, ddof=1), rtol=1e-6)


def test_numbers_are_standardised_and_categories_have_an_input_a_value() -> None:
    columns = fit("site")
    x = encode(columns, NORTH, "north")
    ages = np.array([30, np.mean(AGES["north"]), 50, 61.5])
    expected = (ages - ages.mean()) / np.std(AGES["north"], ddof=1)
    assert np.allclose(x[:, 0], expected, atol=1e-6)
    assert x[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert x.dtype == np.float32


def test_without_standardising_missing_numbers_still_get_the_mean() -> None:
    x = encode(fit("none"), NORTH)
    everyone = np.concatenate(list(AGES.values()))
    assert np.allclose(x[:, 0], [30, everyone.mean(), 50, 61.5])


def test_dummies_leave_the_first_value_out_and_are_standardised() -> None:
    columns = fit_columns({"a": NORTH}, find_kinds([NORTH]), dummies=True)
    sex = columns[1]
    assert sex.values == ("m",)
    given = np.array([0, 1, 0, 0])
    expected = (given - given.mean()) / given.std(ddof=1)
    assert np.allclose(encode(columns, NORTH)[:, 1], expected, atol=1e-6)


def test_a_constant_column_is_zero_and_a_site_without_values_takes_those_of_all() -> None:
    flat = {"a": table(v=[0.1] * 7), "b": table(v=[0.1] * 3)}
    assert not encode(fit_columns(flat, {"v": "number"}), flat["a"]).any()
    sites = {"a": table(v=[1.0, 3.0]), "b": table(v=[np.nan, np.nan])}
    column = fit_columns(sites, {"v": "number"}, "site")[0]
    assert column.mean is not None and column.mean["b"] == (2.0,)


def test_columns_survive_json() -> None:
    for standardise in ("federated", "site", "none"):
        columns = fit(standardise)
        plain = [column.to_plain() for column in columns]
        again = [TableColumn.from_plain(entry) for entry in plain]
        assert np.array_equal(encode(again, NORTH, "north"), encode(columns, NORTH, "north"))
    assert fit()[0].to_plain()["mean"] == pytest.approx(400028.36)


def test_any_order_of_columns_and_others_beside_them_will_do() -> None:
    swapped = table(sex=["f"], other=["?"], age=["30"])
    usual = table(age=["30"], sex=["f"])
    assert np.array_equal(encode(fit(), swapped), encode(fit(), usual))


def test_an_unknown_value_of_a_category_is_none_of_the_known_ones() -> None:
    assert encode(fit(), table(age=["30"], sex=["unknown"]))[0, 1:].tolist() == [0, 0, 0]


def test_numbers_that_are_categories_are_equal_however_they_are_written() -> None:
    assert [write_value(v) for v in ("1", "1.0", 1.0, " x", None, float("nan"))] == [
        *("1", "1", "1"),
        *(" x", None, None),
    ]
    codes = table(code=["1", "2.0", "1.0"])
    columns = fit_columns({"a": codes}, find_kinds([codes], ["code"]))
    assert columns[0].values == ("1", "2")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            [table(age=["1", "old"])],
            r"site 'north', row 3, column 'age': 'old' is not a number, .* data.categorical",
        ),
        (
            [table(a=["1"]), table("site 'south'", b=["1"])],
            "site 'south' has no column 'a', which site 'north' has",
        ),
        ([table(age=["", "NA"])], "column 'age' has no value at all"),
        ([Table({}, [0], "site 'n'")], "site 'n' has no column of features"),
    ],
)
def test_columns_that_do_not_fit_are_named(tables: list[Table], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_kinds(tables)


def test_a_stated_category_must_be_a_column() -> None:
    with pytest.raises(ConfigError, match=r"data.categorical: 'x' is no column; there are: age"):
        find_kinds([NORTH], ["x"])


def test_a_category_of_thousands_of_values_is_refused() -> None:
    many = table(name=[f"p{row}" for row in range(1001)])
    with pytest.raises(DataError, match="column 'name' has 1,001 different values"):
        fit_columns({"a": many}, {"name": "category"})


@pytest.mark.parametrize(
    ("given", "site", "message"),
    [
        (table("x", age=["3"]), "north", "x has no column 'sex'; it has: age"),
        (
            NORTH,
            None,
            "client = None: .* by itself; choose one with client= .*--client.*: north, south",
        ),
        (NORTH, "east", "client = 'east'"),
        (table("x", age=["old"], sex=["f"]), "north", "x, row 2, column 'age': 'old' is not a n"),
    ],
)
def test_what_cannot_be_encoded_is_one_clear_line(
    given: Table, site: str | None, message: str
) -> None:
    with pytest.raises(CoterieError, match=message):
        encode(fit("site"), given, site)


def test_a_missing_number_is_refused_where_none_was_filled_in_at_training() -> None:
    with pytest.raises(DataError, match="site 'north', row 3, column 'age': the value is missing"):
        encode(fit(missing="refuse"), NORTH)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1", "inf"], "row 3, column 'v': inf is no finite number"),
        ([1, [2]], r"row 3, column 'v': \[2\] is neither a number nor a text"),
        (np.array(["2020-01-01"], "datetime64[D]"), "column 'v' has dates"),
    ],
)
def test_cells_that_are_neither_numbers_nor_text_are_refused(cells: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(v=cells)


def test_frames_keep_the_rows_of_their_index() -> None:
    frame = pd.DataFrame({"a": [1, None], "b": ["x", None]}, index=[17, 21])
    read = read_frame(frame, "site 's'")
    assert read.locate(1, "a") == "site 's', row 21, column 'a'"
    assert np.isnan(read.columns["a"][1]) and read.columns["b"][1] is None
    with pytest.raises(DataError, match="two columns 'a'"):
        read_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]), "it")


def test_rows_are_split_by_site() -> None:
    parts = split_by_site(table("it", v=["1", "2", "3"], s=["10", "9", "10.0"]), "s", "data.site")
    assert list(parts) == ["9", "10"] and list(parts["10"].rows) == [2, 4]
    with pytest.raises(DataError, match="it, row 3, column 's': the site is missing"):
        split_by_site(table("it", s=["a", ""]), "s", "data.site")
    with pytest.raises(DataError, match=r"it: data.site='x' is no column; it has: s"):
        split_by_site(table("it", s=["a"]), "x", "data.site")


def test_arrays_of_numbers_take_frames_of_numbers_only() -> None:
    assert stack_numbers(table(a=["1"], b=["2"])).tolist() == [[1, 2]]
    with pytest.raises(DataError, match="row 2, column 'a': 'x' is not a number"):
        stack_numbers(table(a=["x"]))


def test_numbers_that_stand_for_a_missing_cell_are_emptied_in_their_columns() -> None:
    cells = {"age": [1.0, -9.0, 2.0], "pain": ["mild", "-9", None], "other": [-9.0, 1.0, 2.0]}
    cleared = clear_gaps(make_table(cells, range(3), "a"), {"age": (-9.0,), "pain": (-9.0,)})
    assert [is_missing(cleared.columns[name]).tolist() for name in cells] == [
        [False, True, False],
        [False, True, True],
        [False, False, False],
    ]
