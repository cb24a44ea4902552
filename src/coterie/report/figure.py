"""Draws metrics of a run as a Plotly figure, for notebooks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.report.chart import History, list_points

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def draw_metrics(history: History, metrics: Sequence[str]) -> "Figure":
    """Draw metrics over the rounds of a run, counted from 1."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for name in metrics:
        points = list_points(history, name)
        x, y = [round for round, _ in points], [value for _, value in points]
        figure.add_trace(Scatter(x=x, y=y, name=name, mode="lines+markers"))
    title = metrics[0] if len(metrics) == 1 else "value"
    figure.update_layout(xaxis_title="round", yaxis_title=title, template="plotly_white")
    return figure
