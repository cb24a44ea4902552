"""The HTML tables of the page: what was lost and why, the configuration, the digests."""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from coterie.core.formatting import list_first
from coterie.engine.record import RoundEvent
from coterie.report.summary import rank_clients

_REASONS = 200  # rows of the table of losses
_EXTREMES = 10  # clients listed at each end, where there are many


def format_table(
    rows: Sequence[Sequence[str]], head: Sequence[str] = (), number: int = -1, caption: str = ""
) -> str:
    """Format a table; the first column holds names, the column `number` numbers."""
    kinds = {0: ' class="name"', number: ' class="number"'}
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    top = f"<thead><tr>{top}</tr></thead>" if head else ""
    body = ""
    for row in rows:
        cells = (f"<td{kinds.get(i, '')}>{escape(cell)}</td>" for i, cell in enumerate(row))
        body += f"<tr>{''.join(cells)}</tr>\n"
    return f'<div class="table"><table>{title}{top}<tbody>{body}</tbody></table></div>\n'


def list_losses(history: Sequence[RoundEvent]) -> Iterator[str]:
    """List lost and rejected clients by reason; empty where there are none."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for event in history:
        for kind, reasons in (("lost", event.lost), ("rejected", event.rejected)):
            for client, reason in reasons.items():
                groups.setdefault((kind, str(reason)), []).append((str(event.round + 1), client))
    skipped = [str(event.round + 1) for event in history if event.skipped]
    if not groups and not skipped:
        return
    yield "<h2>Lost, rejected, skipped</h2>"
    if skipped:
        yield f'<p class="note">Skipped rounds: {escape(list_first(skipped))}.</p>'
    if groups:
        often = sorted(groups.items(), key=lambda item: -len(item[1]))[:_REASONS]
        rows = [
            (kind, reason, f"{len(cases):,}", *map(list_first, zip(*cases, strict=True)))
            for (kind, reason), cases in often
        ]
        yield format_table(rows, ("what", "reason", "times", "rounds", "clients"), number=2)
    if (rest := len(groups) - _REASONS) > 0:
        yield f'<p class="note">{rest:,} reasons that were rarer are left out.</p>'


def list_clients(history: Sequence[RoundEvent], metric: str) -> Iterator[str]:
    """List how every client fares, worst first; of many clients the worst and the best."""
    name, ranked = rank_clients(history, metric)
    if not ranked:
        return
    yield "<h2>Clients</h2>"
    left_out = len(ranked) - 2 * _EXTREMES
    if left_out > 0:
        yield f'<p class="note">{left_out:,} clients between these are left out.</p>'
        ranked = [*ranked[:_EXTREMES], *ranked[-_EXTREMES:]]
    rows = [(c.name, f"{c.value:.4f}", "never trained" if c.unseen else "") for c in ranked]
    head = ("client", name, "") if any(c.unseen for c in ranked) else ("client", name)
    yield format_table([row[: len(head)] for row in rows], head, number=1)


def list_classes(history: Sequence[RoundEvent]) -> Iterator[str]:
    """List which share of every class's test samples is recognised."""
    last = history[-1]
    if not last.recall:
        return
    yield "<h2>Classes</h2>"
    rows = [(name, f"{share:.4f}") for name, share in last.recall.items()]
    yield format_table(rows, ("class", "recall"), number=1)


def list_settings(config: Mapping[str, Any]) -> Iterator[str]:
    """List a table for every table of the configuration, first one for keys in no table."""
    loose = {key: value for key, value in config.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in config.items() if key not in loose}
    for name, values in ({"": loose} | tables).items():
        if rows := list(_flat(values)):
            yield format_table(rows, caption=name)


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{above}{key}", text


def list_digests(partition: str, history: Sequence[RoundEvent]) -> Iterator[str]:
    """List the digests by which two runs can be compared."""
    last = history[-1]
    yield "<h2>Digests</h2>"
    rows = [
        ("partition", partition),
        (f"server's state after round {last.round + 1}", last.digest),
        (f"clients' states after round {last.round + 1}", last.states),
    ]
    yield format_table(rows)
    yield "<details><summary>Digests of every round</summary>"
    every = [(str(event.round + 1), event.digest, event.states) for event in history]
    yield format_table(every, ("round", "server's state", "clients' states"))
    yield "</details>"
