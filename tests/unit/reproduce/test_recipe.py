"""A recipe is read whole, and every key of it is checked."""

from pathlib import Path
from typing import Any

import pytest
from made_recipe import TEXT, recipe, tables

from coterie.core.errors import ConfigError
from coterie.reproduce.plan import make
from coterie.reproduce.recipe import RECIPES, load, parse, shipped


def test_a_recipe_is_read_with_its_defaults() -> None:
    found = recipe()
    assert [row.name for row in found.rows] == ["FedAvg", "FedProx"]
    assert [column.name for column in found.columns] == ["one", "two"]
    assert list(found.scales) == ["paper", "smoke"]
    assert (found.measure, found.metric, found.choose) == ("accuracy", "accuracy", "test")
    assert found.fraction(65.0) == 0.65
    assert recipe(unit="fraction").fraction(0.65) == 0.65


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
    place: Any = some
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return some


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("papr",), "x", "the recipe has no key 'papr'; did you mean 'paper'?"),
        (("colum",), [], "the recipe has no key 'colum'; did you mean 'column'?"),
        (("unit",), "promille", "the recipe.unit = 'promille'"),
        (("reference",), "FedAvgg", "reference = 'FedAvgg' is not known; did you mean 'FedAvg'?"),
        (("scale", "huge"), {}, "scale = 'huge' is not known; there are: paper, laptop, smoke"),
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
        make(parse(some), "smoke")


@pytest.mark.parametrize("name", shipped())
def test_every_cell_of_a_shipped_recipe_can_be_resolved(name: str) -> None:
    found = load(name)
    first = (RECIPES / f"{name}.toml").read_text().splitlines()[0]
    assert first.startswith(f"# coterie reproduce {name} ")
    assert "smoke" in found.scales
    for scale in found.scales:
        plan = make(found, scale, gpu=True)
        assert plan.cells
        assert found.reference in [row.name for row in plan.rows]
