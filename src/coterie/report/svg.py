"""Parts of pictures in SVG: lines, texts, points, and panels side by side."""

from collections.abc import Sequence
from html import escape

# Okabe and Ito's, as in style.css: distinguishable with every common kind of colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#008a66", "#b0578d", "#a67c00", "#3ba0d8", "#7d4e2d", "#1c2126")
DASHES = ("", "7 4", "2 3", "8 3 2 3")
INK, SOFT, GRID = "#1c2126", "#56616b", "#e6e9ec"
_PAPER = "#ffffff"
# what a reader's dark theme shows instead, as in style.css
_DARK = {
    "#0072b2": "#56b4e9",
    "#d55e00": "#f0883a",
    "#008a66": "#2fc39a",
    "#b0578d": "#dc97bd",
    "#a67c00": "#e6c229",
    "#3ba0d8": "#9fd8ff",
    "#7d4e2d": "#c9956c",
    INK: "#e6eaee",
    SOFT: "#a3afbb",
    GRID: "#29313a",
    _PAPER: "#181d23",
}
CENTRED = 'text-anchor="middle"'
_ACROSS = 3  # panels beside each other, at most


def make_svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Wrap parts in a picture of a size, with a title for readers that do not see it.

    Where the reader's theme is dark, its paper is dark too: it can lie on a page of either theme.
    """
    rules = (
        f'[{what}="{light}"]{{{what}:{dark}}}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def split_lines(count: int) -> list[int]:
    """Split panels into lines: three on each, but four two by two, which leaves no gap."""
    across = 2 if count == 4 else _ACROSS
    return [min(across, count - start) for start in range(0, count, across)]


def place_panels(
    lines: Sequence[int], width: int, height: int, top: int
) -> tuple[list[tuple[int, int]], int, int]:
    """Return the corners of panels in lines below `top`, and the size of the picture."""
    places = [(column, line) for line, count in enumerate(lines) for column in range(count)]
    corners = [(column * width, top + line * height) for column, line in places]
    across = max(2, *lines)  # a single panel still has to leave room for the title
    return corners, across * width, top + len(lines) * height


def draw_text(x: float, y: float, text: str, fill: str = INK, more: str = "") -> str:
    """Draw a text; `more` holds further attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" {more}>{escape(text)}</text>'


def draw_line(
    points: Sequence[tuple[float, float]], colour: str, width: int, dash: str = ""
) -> str:
    """Draw a line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    style = f'fill="none" stroke="{colour}" stroke-width="{width}"{dashed}'
    return f'<polyline points="{path}" {style}/>'


def draw_area(points: Sequence[tuple[float, float]], colour: str) -> str:
    """Draw an area between points, through which a grid and lines can be seen."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{path}" fill="{colour}" fill-opacity="0.16"/>'
