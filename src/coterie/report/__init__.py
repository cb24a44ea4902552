"""One self-contained HTML page for a run directory."""

from coterie.report.page import write_report
from coterie.report.summary import Headline, make_headline

__all__ = ["Headline", "make_headline", "write_report"]
