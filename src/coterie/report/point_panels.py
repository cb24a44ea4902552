"""Draws points in the plane as SVG: a panel for every model, a colour and a shape for a class."""

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.report.scatter import Scatter
from coterie.report.svg import COLOURS, INK, draw_text, make_svg, place_panels, split_lines

_SIDE, _EDGE = 300, 16  # of a panel with its title, and around its frame
_TITLE = 26
_ENTRY = 74  # pixels of a class in the legend
_SIZE = 2.8  # pixels from the middle of a point to its edge
_SHAPES = (  # paths around (0, 0), one unit from the middle to the edge
    "M-1,0A1,1 0 1,0 1,0A1,1 0 1,0 -1,0Z",  # a disc
    "M0,-1.5L1.5,0L0,1.5L-1.5,0Z",  # a diamond
    "M-1.1,-1.1H1.1V1.1H-1.1Z",  # a square
    "M0,-1.5L1.4,1L-1.4,1Z",  # a triangle
)
_LISTED = len(COLOURS) * len(_SHAPES)  # of more classes than signs no legend can tell


def draw_points(groups: Sequence[Sequence[Scatter]], title: str) -> str:
    """Draw the points of models, with a legend of the classes above.

    Every group of several panels has a line of its own; groups of one panel follow each other.
    """
    panels = [panel for group in groups for panel in group]
    apart = any(len(group) > 1 for group in groups)
    lines = [len(group) for group in groups] if apart else split_lines(len(panels))
    classes = sorted({int(label) for panel in panels for label in np.unique(panel.classes)})
    legend = classes if len(classes) <= _LISTED else []
    across = (max(2, *lines) * _SIDE - 2 * _EDGE) // _ENTRY
    top = 40 + 20 * -(-len(legend) // across)
    corners, width, height = place_panels(lines, _SIDE, _SIDE + _TITLE, top)
    signs = "".join(_define_sign(label) for label in classes)
    parts = [f"<defs>{signs}</defs>", draw_text(_EDGE, 26, title, more='font-size="15"')]
    for position, label in enumerate(legend):
        x, y = _EDGE + 5 + _ENTRY * (position % across), 46 + 20 * (position // across)
        name = f"class {label}" if label >= 0 else "no class"
        parts += [_draw_point(x, y, label), draw_text(x + 10, y + 4, name)]
    for corner, panel in zip(corners, panels, strict=True):
        parts += _draw_panel(*corner, panel)
    return make_svg(width, height, title, parts)


def _draw_panel(left: float, top: float, panel: Scatter) -> Iterator[str]:
    """Draw one panel; its axes span all points that were embedded together."""
    start, side = (left + _EDGE, top + _TITLE), _SIDE - 2 * _EDGE
    yield draw_text(start[0], top + 18, panel.name, more='font-weight="600"')
    frame = f'<rect x="{start[0]}" y="{start[1]}" width="{side}" height="{side}"'
    yield f'{frame} fill="none" stroke="#aab3bb"/>'
    low, high = panel.together.min(axis=0), panel.together.max(axis=0)
    shares = (panel.points - low) / np.maximum(high - low, 1e-12)
    inner = side - 4 * _SIZE
    for (x, y), label in zip(shares.tolist(), panel.classes.tolist(), strict=True):
        right, down = 2 * _SIZE + x * inner, 2 * _SIZE + (1 - y) * inner
        yield _draw_point(start[0] + right, start[1] + down, int(label))


def _define_sign(label: int) -> str:
    """Define the sign of a class for all its points; that of no class is small and black."""
    colour = COLOURS[label % len(COLOURS)] if label >= 0 else INK
    shape = _SHAPES[label // len(COLOURS) % len(_SHAPES)] if label >= 0 else _SHAPES[0]
    size = _SIZE if label >= 0 else _SIZE / 2
    drawn = f'd="{shape}" transform="scale({size:g})" fill="{colour}" fill-opacity="0.75"'
    return f'<path id="{_identify(label)}" {drawn}/>'


def _draw_point(x: float, y: float, label: int) -> str:
    return f'<use href="#{_identify(label)}" x="{x:.1f}" y="{y:.1f}"/>'


def _identify(label: int) -> str:
    return f"c{label}" if label >= 0 else "none"
