"""One self-contained HTML page for a run directory."""

from coterie.report.page import write_report
from coterie.report.summary import Headline, headline

__all__ = ["Headline", "headline", "write_report"]
