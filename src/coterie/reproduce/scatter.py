"""Pictures of embedded features: a panel for every model."""

from collections.abc import Iterator, Sequence
from html import escape

from coterie.report.page import figures, note
from coterie.report.scatter import Scatter, panel


def body(shown: Sequence[Scatter], title: str, words: str, about: str) -> Iterator[str]:
    """The page: the numbers in words, how to read it, then the panels."""
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="soft">{escape(words)}</p>'
    yield note(about)
    yield figures([panel(one) for one in shown], "charts small")
