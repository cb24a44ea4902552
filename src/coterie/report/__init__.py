"""One self-contained HTML page for a run directory."""

from coterie.report.figures import Headline, headline
from coterie.report.page import write_report

__all__ = ["Headline", "headline", "write_report"]
