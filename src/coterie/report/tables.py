"""The HTML tables of the page: what was lost and why, the configuration, the digests."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from coterie.core.formatting import counted, list_first
from coterie.engine.record import RoundEvent

_ROUNDS = 500  # of which digests are listed
_REASONS = 200  # rows of the table of losses


@dataclass(frozen=True)
class TableCell:
    """A cell of a table that is more than a text."""

    text: str
    value: float | None = None  # by which it is sorted
    kind: str = ""  # a class of `style.css` for its text
    link: str = ""  # an address, already quoted


def format_table(
    rows: Sequence[Sequence[str | TableCell]],
    head: Sequence[str] = (),
    numbers: Collection[int] = (),
    caption: str = "",
    *,
    name: str = "",
    groups: Sequence[tuple[str, int]] = (),
) -> str:
    """Format a table; the first column holds names, those in `numbers` hold numbers.

    A table with a `name` can be sorted in the browser and saved under it. `groups` are heads above
    the head, each with the number of columns that it spans.
    """
    kinds = {0: ' class="name"'} | dict.fromkeys(numbers, ' class="number"')
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    above = "".join(f'<th colspan="{wide}">{escape(text)}</th>' for text, wide in groups)
    above = f'<tr class="groups">{above}</tr>' if groups else ""
    top = "".join(f"<th{kinds.get(i, '')}>{escape(text)}</th>" for i, text in enumerate(head))
    top = f"<thead>{above}<tr>{top}</tr></thead>" if head else ""
    body = ""
    for row in rows:
        cells = (_format_cell(cell, kinds.get(i, "")) for i, cell in enumerate(row))
        body += f"<tr>{''.join(cells)}</tr>\n"
    text = f'<div class="table"><table>{title}{top}<tbody>{body}</tbody></table></div>\n'
    return f'<div class="sortable" data-name="{escape(name)}">{text}</div>' if name else text


def _format_cell(cell: str | TableCell, kind: str) -> str:
    if isinstance(cell, str):
        return f"<td{kind}>{escape(cell)}</td>"
    text = escape(cell.text)
    text = f'<a href="{escape(cell.link)}">{text}</a>' if cell.link else text
    text = f'<span class="{cell.kind}">{text}</span>' if cell.kind else text
    value = f' data-value="{cell.value:.9g}"' if cell.value is not None else ""
    return f"<td{kind}{value}>{text}</td>"


def describe_trouble(history: Sequence[RoundEvent]) -> str:
    """Count what was lost, rejected and skipped in a sentence; empty where nothing was."""
    lost = [reason for event in history for reason in event.lost.values()]
    rejected = [reason for event in history for reason in event.rejected.values()]
    diverged = sum(str(reason).startswith("diverged") for reason in rejected)
    skipped = sum(event.skipped for event in history)
    parts = [f"{counted(len(lost), 'answer')} lost"] if lost else []
    if rejected:
        of_them = f", {diverged:,} of them as the client diverged" if diverged else ""
        parts.append(f"{counted(len(rejected), 'answer')} rejected{of_them}")
    if skipped:
        parts.append(f"{counted(skipped, 'round')} skipped, which left the model as it was")
    asked = sum(len(event.cohort) for event in history)
    of_all = f" Clients were asked {counted(asked, 'time')}." if lost or rejected else ""
    return f"{'; '.join(parts)}.{of_all}" if parts else ""


def list_losses(history: Sequence[RoundEvent]) -> Iterator[str]:
    """List lost and rejected clients by reason; empty where there are none."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for event in history:
        for kind, reasons in (("lost", event.lost), ("rejected", event.rejected)):
            for client, reason in reasons.items():
                groups.setdefault((kind, str(reason)), []).append((str(event.round + 1), client))
    skipped = [str(event.round + 1) for event in history if event.skipped]
    if skipped:
        yield f'<p class="note">Skipped rounds: {escape(list_first(skipped))}.</p>'
    if groups:
        often = sorted(groups.items(), key=lambda item: -len(item[1]))[:_REASONS]
        rows = [
            (kind, reason, f"{len(cases):,}", *map(list_first, zip(*cases, strict=True)))
            for (kind, reason), cases in often
        ]
        yield format_table(rows, ("what", "reason", "times", "rounds", "clients"), numbers={2})
    if (rest := len(groups) - _REASONS) > 0:
        yield f'<p class="note">{rest:,} reasons that were rarer are left out.</p>'


def list_settings(config: Mapping[str, Any]) -> Iterator[str]:
    """List a table for every table of the configuration, first one for keys in no table."""
    loose = {key: value for key, value in config.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in config.items() if key not in loose}
    for name, values in ({"": loose} | tables).items():
        if rows := list(flatten(values)):
            yield format_table(rows, caption=name)


def flatten(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """List the keys of a table and of those in it, `options.mu`, with their values as text."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{above}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{above}{key}", text


def list_digests(partition: str, history: Sequence[RoundEvent]) -> Iterator[str]:
    """List the digests by which two runs can be compared, and those of every round."""
    last = history[-1]
    rows = [
        ("partition", partition),
        (f"server's state after round {last.round + 1}", last.digest),
        (f"clients' states after round {last.round + 1}", last.states),
    ]
    yield format_table(rows)
    recent = history[-_ROUNDS:]
    if len(recent) < len(history):
        yield f'<p class="note">The last {_ROUNDS:,} rounds; metrics.jsonl has them all.</p>'
    every = [(str(event.round + 1), event.digest, event.states) for event in recent]
    yield format_table(every, ("round", "server's state", "clients' states"))
