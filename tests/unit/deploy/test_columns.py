"""Columns in messages: what is told of them, which requests are answered, and who is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import table_sites

from coterie.core.errors import DataError
from coterie.data.table import TableOptions
from coterie.data.table_statistics import Sums
from coterie.deploy.columns import (
    ColumnCard,
    TableCard,
    describe_sent,
    read_squares,
    read_sums,
    settle_kinds,
)
from coterie.deploy.handshake import Declined
from coterie.deploy.own_table import OwnTable

ASKED: dict[str, Any] = {"age": "number", "smoker": "category"}
GOOD: dict[str, Any] = {"sums": {"age": [3, 150.0]}, "values": {"smoker": ["no", "yes"]}}


def card(**kinds: Any) -> TableCard:
    return TableCard(10, tuple(ColumnCard(name, kind) for name, kind in kinds.items()))


def test_sums_are_read_as_they_were_sent() -> None:
    sums, values = read_sums(GOOD, ASKED, 3)
    assert sums == {"age": Sums((3,), (150.0,))} and values == {"smoker": ("no", "yes")}
    assert read_squares({"squares": {"age": 0}}, sums) == {"age": 0.0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sums": {"age": [3, float("nan")]}}, "nan is not a finite number"),
        ({"sums": {"age": [3, "150"]}}, "'150' is not a finite number"),
        ({"sums": {"age": [11, 1.0]}}, "11 values of a column in 10 rows"),
        ({"sums": {"age": [-1, 1.0]}}, "-1 is not a number of rows"),
        ({"sums": {"age": [True, 1.0]}}, "True is not a number of rows"),
        ({"sums": {"age": [0, 1.0]}}, "1.0 is no sum of 0 numbers"),
        ({"sums": {"age": [2, 1e40]}}, "1e.40 is no sum of 2 numbers"),
        ({"sums": {"age": 3}}, "3 is no count with a sum"),
        ({"sums": {}}, "it answered for other columns"),
        ({"sums": {"age": [1, 1.0], "x": [1, 1.0]}}, "it answered for other columns"),
        ({"sums": None}, "it answered for other columns"),
        ({"values": {"smoker": "yes"}}, "1,000 values at most"),
        ({"values": {"smoker": [str(n) for n in range(1001)]}}, "1,000 values at most"),
        ({"values": {"smoker": ["y" * 201]}}, "text of up to 200 letters"),
        ({"values": {"smoker": [1]}}, "text of up to 200 letters"),
        ({"values": {"smoker": [""]}}, "text of up to 200 letters"),
    ],
)
def test_what_are_no_sums_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_sums({**GOOD, **change}, ASKED, 10)


@pytest.mark.parametrize(
    "squares", [{"age": -1.0}, {"age": 1e80}, {"age": float("inf")}, {"age": None}, {}, None]
)
def test_what_are_no_squares_is_refused(squares: Any) -> None:
    with pytest.raises(ValueError):
        read_squares({"squares": squares}, {"age": Sums((3,), (1.0,))})


def test_a_column_without_values_has_no_squares() -> None:
    with pytest.raises(ValueError, match="no sum of squares"):
        read_squares({"squares": {"age": 1.0}}, {"age": Sums((0,), (0.0,))})


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ({"rows": 3, "columns": []}, "a table has columns"),
        ({"rows": 3, "columns": "age"}, "a table has columns"),
        ({"rows": 3, "columns": [{}] * 10_001}, "10,000 columns at most"),
        ({"rows": -3, "columns": [{"name": "a", "kind": None, "bare": True}]}, "-3 is not"),
        ({"rows": 3, "columns": [{"name": "a", "kind": "date", "bare": True}]}, "'date' is no k"),
        ({"rows": 3, "columns": [{"name": "a", "kind": None, "bare": 1}]}, "no kind"),
        ({"rows": 3, "columns": [{"name": "a" * 300, "kind": None, "bare": True}]}, "200 letters"),
        ({"rows": 3, "columns": [{"name": "a", "kind": None, "bare": True}] * 2}, "same name"),
    ],
)
def test_what_is_no_card_of_a_table_is_refused(plain: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        TableCard.from_plain(plain)


def test_kinds_are_those_of_most_sites_and_a_site_without_values_takes_them() -> None:
    cards = {
        "a": card(age="number", sex=None),
        "b": card(sex="category", age="number"),
        "c": card(age=None, sex="category"),
    }
    assert settle_kinds(cards) == ({"age": "number", "sex": "category"}, {})
    assert settle_kinds({"a": card(age=None)}) == ({"age": "number"}, {})


def test_sites_that_differ_are_refused_with_the_column_and_a_site() -> None:
    cards = {
        "a": card(age="category"),
        "b": card(age="number"),
        "c": card(age="number"),
        "d": card(age="number", sex="category"),
        "e": card(sex="category"),
    }
    kinds, refused = settle_kinds(cards)
    assert kinds == {"age": "number"} and list(refused) == ["d", "e", "a"]
    assert "its column 'age' has text, and that of site 'b' numbers" in refused["a"]
    assert refused["d"] == "it has a column 'sex', which site 'a' has not"
    assert refused["e"] == "it has no column 'age', which site 'a' has"


@pytest.mark.parametrize(
    ("keys", "told", "not_told"),
    [
        ({}, "of each column of numbers count, sum and sum of squares", "no value"),
        ({"standardise": "site"}, "that a site has no value of, count, sum", "numbers count"),
        ({"standardise": "none"}, "count and sum over", "squares"),
        ({"standardise": "none", "missing": "drop"}, "values of categories", "sum"),
    ],
)
def test_it_is_said_which_sums_leave_a_site(keys: Any, told: str, not_told: str) -> None:
    sent = describe_sent(TableOptions(**keys))
    assert told in sent and not_told not in sent


def read(folder: Path, **keys: Any) -> OwnTable:
    root = table_sites.write_tables(folder / "sites", lacking=False)
    options = TableOptions(label="state", categorical=("ward",), **keys)
    return OwnTable.read(str(root / "amiens.csv"), options)


def test_a_site_answers_with_sums_over_its_training_rows(tmp_path: Path) -> None:
    table = read(tmp_path)
    head = json.loads(json.dumps(table.add_up({"age": "number", "ward": "category"})))
    sums, values = read_sums(head, {"age": "number", "ward": "category"}, len(table.train))
    ages = [age for age in table.train.columns["age"].tolist() if age == age]
    assert sums["age"].count == (len(ages),)
    assert sums["age"].total[0] == pytest.approx(sum(ages))
    assert values == {"ward": ("1", "2")}
    (square,) = table.add_squares({"age": 50.0})["squares"].values()
    assert square == pytest.approx(sum((age - 50.0) ** 2 for age in ages))


@pytest.mark.parametrize(
    "asked", [{"age": "category"}, {"smoker": "number"}, {"state": "category"}, {"age": 1}, "age"]
)
def test_a_server_cannot_ask_for_more_than_the_columns_are(asked: Any, tmp_path: Path) -> None:
    with pytest.raises(Declined, match="the server asks for"):
        read(tmp_path).add_up(asked)


def test_sums_that_the_configuration_does_not_need_are_not_sent(tmp_path: Path) -> None:
    plain = read(tmp_path, standardise="none", missing="drop")
    with pytest.raises(Declined, match="the server asks for 'number' in the column 'age'"):
        plain.add_up({"age": "number"})
    filled = read(tmp_path, standardise="none")
    assert filled.add_up({"age": "number"})["sums"]
    with pytest.raises(ValueError, match="other columns than it may ask for"):
        filled.add_squares({"age": 1.0})
    with pytest.raises(ValueError, match="nan is not a finite number"):
        read(tmp_path).add_squares({"age": float("nan")})


def test_columns_of_another_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="not those of this table: age, pressure, smoker"):
        read(tmp_path).encode([{"name": "age", "kind": "number"}], "a", "a")
    bare = {"name": "age", "kind": "number", "mean": {}, "deviation": {}}
    others = [{"name": name, "kind": "category"} for name in ("pressure", "smoker", "ward")]
    for path in (tmp_path / "sites").glob("*.csv"):
        lines = path.read_text().splitlines()
        path.write_text(
            "\n".join([lines[0], *(f",{line.partition(',')[2]}" for line in lines[1:])])
        )
    options = TableOptions(label="state", categorical=("ward",), standardise="site")
    own = OwnTable.read(str(tmp_path / "sites" / "amiens.csv"), options)
    with pytest.raises(Declined, match="the run has no mean of the column 'age'"):
        own.encode([bare, *others], "amiens", "amiens")


def test_a_client_is_one_site(tmp_path: Path) -> None:
    root = table_sites.write_tables(tmp_path / "sites")
    with pytest.raises(DataError, match="has the files of 3 sites, and a client is one"):
        OwnTable.read(str(root), TableOptions(label="state"))
