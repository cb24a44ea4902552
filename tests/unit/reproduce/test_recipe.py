"""A recipe is read whole, and every key of it is checked."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from made_recipe import TEXT, recipe, tables

from coterie.core.errors import ConfigError
from coterie.reproduce.plan import make_study
from coterie.reproduce.recipe import (
    Claim,
    Column,
    Cost,
    Features,
    Recipe,
    Row,
    Scale,
    get_at_scale,
    load,
    parse,
)


def test_a_recipe_is_read_with_its_defaults() -> None:
    found = recipe()
    assert [row.name for row in found.rows] == ["FedAvg", "FedProx"]
    assert [column.name for column in found.columns] == ["one", "two"]
    assert list(found.scales) == ["paper", "smoke"]
    assert (found.measure, found.metric, found.choose) == ("accuracy", "accuracy", "test")
    assert found.to_fraction(65.0) == 0.65
    assert dataclasses.replace(found, unit="fraction").to_fraction(0.65) == 0.65


def test_without_columns_there_is_one() -> None:
    some = tables()
    del some["column"]
    for row in some["row"]:
        for key in ("value", "spread", "rounds"):
            row.pop(key, None)
    assert [column.name for column in parse(some).columns] == ["accuracy"]


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The tables with one value set."""
    some = tables()
    table: Any = some
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return some


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("papr",), "x", "the recipe has no key 'papr'; did you mean 'paper'?"),
        (("colum",), [], "the recipe has no key 'colum'; did you mean 'column'?"),
        (("unit",), "promille", "the recipe.unit = 'promille'"),
        (("reference",), "FedAvgg", "reference = 'FedAvgg' is not known; did you mean 'FedAvg'?"),
        (("scale", "huge"), {}, "scale = 'huge' is not known; it is one of: paper, laptop, smoke"),
        (("scale", "smoke", "seed"), 3, "scale.smoke has no key 'seed'; did you mean 'seeds'?"),
        (("scale", "smoke", "seeds"), 0, "scale.smoke.seeds = 0"),
        (("scale", "smoke", "rows"), ["MOON"], "scale.smoke.rows = 'MOON' is not known"),
        (("row", 1, "vlue"), {}, "row 'FedProx' has no key 'vlue'; did you mean 'value'?"),
        (("row", 1, "value"), {"three": 1.0}, "row 'FedProx': value = 'three' is not known"),
        (("row", 1, "name"), "FedAvg", "there are 2 rows called 'FedAvg'"),
        (("row", 1, "grid"), {"method.mu": []}, "grid of 'method.mu' has no value"),
        (("row", 1, "seeds"), 1.5, "row 'FedProx'.seeds = 1.5"),
        (("column", 0, "target"), 68.0, "column 'one'.target = 68.0"),
        (("claim",), [{"text": "x", "above": "FedProx"}], "needs the key 'below'"),
        (("claim",), [{"text": "x", "above": "A", "below": "FedAvg"}], "above = 'A' is not known"),
        (("claim",), [{"text": "x", "above": "FedAvg", "kind": "peak"}], "at = '' is not known"),
        (("claim",), {"text": "x"}, "claim must be written [[claim]]"),
        (("row",), [], "it has no row"),
        (("scale",), {}, "it has no scale"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], value: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(changed(path, value))
    assert reason in str(raised.value)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TEXT.replace("about", "abuot"))
    with pytest.raises(ConfigError, match=r"mine\.toml: the recipe has no key 'abuot'"):
        load(str(file))
    file.write_text("paper = ")
    with pytest.raises(ConfigError, match=r"mine\.toml is not TOML"):
        load(str(file))


def test_a_cell_that_cannot_be_resolved_is_named() -> None:
    some = changed(("row", 1, "set"), {"method.mus": 1.0})
    with pytest.raises(ConfigError, match=r"FedProx, one: method has no key 'mus'"):
        make_study(parse(some), "smoke")


def page() -> str:
    return (Path(__file__).parents[3] / "docs" / "reproducing.md").read_text()


def test_the_recipe_on_its_page_can_be_run() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page(), re.M | re.S)
    found = parse(tomllib.loads(text))
    for scale in found.scales:
        assert len(make_study(found, scale).cells) == 4


@pytest.mark.parametrize("kind", [Recipe, Scale, Column, Row, Claim, Features, Cost])
def test_every_key_is_on_the_page(kind: type) -> None:
    tables = {"scales", "columns", "rows", "claims", "features", "cost"}  # each has keys of its own
    made_of = {"name", "source", *tables} if kind is Recipe else set()
    for item in dataclasses.fields(kind):
        assert item.name in made_of or f"`{item.name}`" in page(), item.name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"unit": "fraction"}, "60.0 of 'one' is no accuracy as a fraction"),
        ({"reference": "FedProx", "scale": {"smoke": {"rows": ["FedAvg"]}}}, "lacks the reference"),
    ],
)
def test_what_would_only_show_after_the_runs_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse({**tables(), **change})


def test_a_grid_has_no_value_twice_and_closeness_a_margin() -> None:
    some = tables()
    some["row"][1]["grid"] = {"method.mu": [0.1, 0.1]}
    with pytest.raises(ConfigError, match="has a value twice"):
        parse(some)
    some = tables()
    some["claim"] = [{"text": "so", "kind": "closer", "above": "FedProx", "below": "FedAvg"}]
    with pytest.raises(ConfigError, match="needs a 'margin' above 0"):
        parse(some)


def test_a_value_is_not_read_beyond_the_end_of_a_run() -> None:
    some = tables()
    some["column"][0]["at"] = 5000
    with pytest.raises(ConfigError, match="at = 5000 is beyond its"):
        make_study(parse(some), "smoke")


def test_a_row_may_be_like_one_above_it_but_for_its_own_changes() -> None:
    some = tables()
    some["row"][0] |= {"set": {"local.lr": 0.1, "local.epochs": 2}, "metric": "knn", "seeds": 3}
    some["row"][0] |= {"set_smoke": {"local.epochs": 1}, "grid": {"local.momentum": [0.0, 0.9]}}
    some["row"].append({"name": "again", "like": "FedAvg", "set": {"local.lr": 0.2}})
    some["row"].append({"name": "third", "like": "again", "config": "fedprox", "grid_smoke": {}})
    again, third = parse(some).rows[2:]
    assert again.set == {"local.lr": 0.2, "local.epochs": 2}
    assert again.set_smoke == third.set_smoke == {"local.epochs": 1}
    assert again.grid == third.grid == {"local.momentum": (0.0, 0.9)}
    assert (again.config, third.config) == ("fedavg", "fedprox")
    assert get_at_scale(third, "grid", "smoke") == {} != get_at_scale(third, "grid", "paper")
    assert (again.metric, again.seeds, again.value) == ("", None, {})  # what is read is its own


def test_a_row_that_is_like_none_above_it_is_refused() -> None:
    some = tables()
    some["row"].insert(0, {"name": "first", "like": "FedAvg"})
    with pytest.raises(ConfigError, match="row 'first': like = 'FedAvg' is not known"):
        parse(some)
