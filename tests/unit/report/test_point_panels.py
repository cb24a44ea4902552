"""Points as SVG: one for every sample, inside its frame, classes told apart by colour and shape."""

from xml.etree import ElementTree

import numpy as np
import pytest

from coterie.report.point_panels import draw_points
from coterie.report.scatter import Scatter

SPACE = "{http://www.w3.org/2000/svg}"


def scatter(name: str, classes: list[int]) -> Scatter:
    points = np.random.default_rng(0).normal(size=(len(classes), 2))
    return Scatter(name, points, np.array(classes), points)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8])
def test_every_point_is_inside_and_every_panel_named(count: int) -> None:
    panels = [scatter(f"model <{n}>", [0, 1, 2, 9, 9]) for n in range(count)]
    root = ElementTree.fromstring(draw_points([[panel] for panel in panels], "a & b"))
    texts = [item.text for item in root.iter(f"{SPACE}text")]
    assert {"a & b", "class 0", "class 9", *(f"model <{n}>" for n in range(count))} <= set(texts)
    signs = list(root.iter(f"{SPACE}use"))
    assert len(signs) == 5 * count + 4  # and the legend
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for sign in signs:
        assert 0 < float(sign.attrib["x"]) < width and 0 < float(sign.attrib["y"]) < height


def test_groups_of_several_panels_have_lines_of_their_own() -> None:
    groups = [[scatter("a", [0])] * 2, [scatter("b", [0])] * 3]
    root = ElementTree.fromstring(draw_points(groups, "lines"))
    places = [(t.text, t.attrib["y"]) for t in root.iter(f"{SPACE}text") if t.text in ("a", "b")]
    assert len({y for name, y in places if name == "a"}) == 1
    assert len({y for _, y in places}) == 2


def test_ten_classes_have_ten_signs() -> None:
    root = ElementTree.fromstring(draw_points([[scatter("one", list(range(10)))]], "ten"))
    signs = {(path.attrib["d"], path.attrib["fill"]) for path in root.iter(f"{SPACE}path")}
    assert len(signs) == 10


def test_a_hundred_classes_have_no_legend_and_points_in_one_place_are_drawn() -> None:
    many = scatter("one", list(range(100)))
    assert "class 0" not in draw_points([[many]], "hundred")
    same = np.zeros((3, 2))
    assert "nan" not in draw_points([[Scatter("one", same, np.zeros(3, int), same)]], "same")
