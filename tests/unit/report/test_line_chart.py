"""The curves as SVG: well-formed, everything named, inside the frame."""

import re
from xml.etree import ElementTree

import pytest

from coterie.report.line_chart import draw, draw_panels, draw_small

NAMES = ["FedAvg", "A & B <c>"]


@pytest.mark.parametrize("last", [1, 3, 20, 100, 800])
def test_every_line_is_there_and_inside(last: int) -> None:
    lines = [
        (name, tuple((r, 0.1 + position * 0.3 + r / 2000) for r in range(1, last + 1)))
        for position, name in enumerate(NAMES)
    ]
    root = ElementTree.fromstring(draw(lines, "a title & more", "accuracy"))
    texts = [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {*NAMES, "accuracy", "training round", "a title & more", "1", str(last)} <= set(texts)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", line.attrib["points"])]
        assert all(0 <= x <= width for x in numbers[::2])
        assert all(0 <= y <= height for y in numbers[1::2])


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_panels_have_a_title_a_scale_of_their_own_and_lie_inside(count: int) -> None:
    panels = [
        (f"row {n}", [(name, ((1, 10.0**n), (40, -0.5))) for name in NAMES]) for n in range(count)
    ]
    root = ElementTree.fromstring(draw_panels(panels, "losses", "train_loss"))
    texts = [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {*NAMES, *(f"row {n}" for n in range(count))} <= set(texts)
    assert texts.count("train_loss") == texts.count("training round") == count
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len({line.attrib["stroke"] for line in lines}) == 1 + len(NAMES)  # and the grid
    for line in lines:
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", line.attrib["points"])]
        assert all(0 <= x <= width for x in numbers[::2])
        assert all(0 <= y <= height for y in numbers[1::2])


def test_a_single_line_needs_no_legend() -> None:
    assert ">one<" not in draw_panels([("row", [("one", ((1, 0.1), (2, 0.2)))])], "flat", "loss")


def test_a_flat_line_has_an_axis_around_it() -> None:
    assert "<svg" in draw([("one", ((1, 0.1), (2, 0.1)))], "flat", "accuracy")


def test_bands_and_levels_are_named_and_inside() -> None:
    line = ("one", ((1, 0.4), (2, 0.5)))
    bands = {"one": ((1, 0.1, 0.6), (2, 0.45, 0.95))}
    text = draw_small([line], bands, [("untrained", 0.99)], "a title", "accuracy")
    root = ElementTree.fromstring(text)
    (area,) = root.iter("{http://www.w3.org/2000/svg}polygon")
    heights = [float(n) for n in re.findall(r"-?[\d.]+", area.attrib["points"])[1::2]]
    assert len(heights) == 4 and all(74 <= height <= 308 for height in heights)
    assert ">untrained</text>" in text


def test_a_dark_theme_changes_every_colour_of_a_picture() -> None:
    lines = [(f"line {n}", ((1, 0.1 * n), (2, 0.2 * n))) for n in range(8)]
    text = draw_small(lines, {}, [("level", 0.5)], "a title", "accuracy")
    style = text[text.index("<style>") : text.index("</style>")]
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', text.replace(style, "")))
    assert used == set(re.findall(r'fill="(#[0-9a-f]+)"', style))


def test_labels_of_small_values_do_not_touch_the_name_of_the_axis() -> None:
    root = ElementTree.fromstring(draw([("one", ((1, 0.0091), (2, 0.0098)))], "small", "accuracy"))
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    name = next(float(text.attrib["x"]) for text in texts if text.text == "accuracy")
    ticks = [text for text in texts if text.attrib.get("text-anchor") == "end"]
    starts = [float(text.attrib["x"]) - 8 * len(text.text or "") for text in ticks]
    assert max(len(text.text or "") for text in ticks) == 6 and min(starts) > name
