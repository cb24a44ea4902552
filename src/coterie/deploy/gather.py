"""Who takes part in a run: cards of the clients that come, and the federation they make.

Clients whose data do not fit together are told why and left out. The columns of tables are fitted
to sums that clients send; if one sends something else, the federation is made without it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.core.errors import DataError, RunFailed
from coterie.core.formatting import counted, list_first
from coterie.deploy.column_exchange import fit_form
from coterie.deploy.executor import GRACE, POLL
from coterie.deploy.federation import Card, Federation, agree
from coterie.deploy.handshake import Terms
from coterie.deploy.link import Message, ServerLink
from coterie.deploy.questions import Questions, Unanswered
from coterie.engine.record import Recorders
from coterie.experiment.config import Config

WAIT = 600.0  # seconds for clients to come


@dataclass(frozen=True)
class Patience:
    """How long a server waits, in seconds, and for whom before the first round."""

    clients: int = 0  # that have to join; 0: all that are registered
    join: float = WAIT
    grace: float = GRACE  # for a sign of life of a client that has a task
    poll: float = POLL


def form_federation(
    link: ServerLink, terms: Terms, patience: Patience, notes: Recorders
) -> Federation:
    """Gather the cards of clients, and agree with those that fit together on a form of samples."""
    cards = gather(link, terms, patience, notes)
    if different := describe_kernels(cards):
        notes.note(different)
    questions = Questions(link, terms, patience.join, patience.grace, patience.poll)
    while True:
        federation, refused = agree(cards, terms.classes)
        _refuse(link, refused, notes)
        members = {info.name: cards[info.name] for info in federation.clients}
        tables = {name: card.table for name, card in members.items() if card.table}
        if not tables:
            return federation
        notes.note("asking clients for values and sums of their columns")
        try:
            form = fit_form(questions, terms.config, federation, tables)
            return replace(federation, form=form)
        except DataError as error:  # a column that is of no use at any site
            _refuse(link, dict.fromkeys(members, str(error)), notes)
            raise
        except Unanswered as missing:
            _refuse(link, missing.reasons, notes)
            cards = {name: card for name, card in members.items() if name not in missing.reasons}
        if len(cards) < max(1, terms.config.cohort.min_clients):
            raise RunFailed(
                f"{counted(len(cards), 'client')} left, and cohort.min_clients = "
                f"{terms.config.cohort.min_clients}; start again when clients can be reached"
            )


def describe_kernels(cards: Mapping[str, Card]) -> str:
    """Say which clients compute with which kernels, where they differ; else nothing."""
    sites: dict[str, list[str]] = {}
    for name, card in sorted(cards.items()):
        sites.setdefault(card.kernels, []).append(name)
    if len(sites) < 2:
        return ""
    told = "; ".join(f"{kernels or 'unknown'} at {list_first(at)}" for kernels, at in sites.items())
    return f"kernels differ between clients, and round differently: {told}"


def _refuse(link: ServerLink, refused: Mapping[str, str], notes: Recorders) -> None:
    """Tell clients why they take no part, and note it."""
    reasons = sorted(refused.items())
    link.send([Message(name, "refuse", {"reason": reason}) for name, reason in reasons])
    for name, reason in reasons:
        notes.note(f"client {name!r} is refused: {reason}")


def gather(link: ServerLink, terms: Terms, patience: Patience, notes: Recorders) -> dict[str, Card]:
    """Invite all clients that are connected; wait for those that are not, up to a deadline."""
    deadline = time.monotonic() + patience.join
    out: dict[str, str] = {}  # the invitations that are not answered
    cards: dict[str, Card] = {}
    refused = set[str]()
    head = terms.to_plain()
    while True:
        peers = link.peers()
        settled = {*cards, *refused, *out.values()}
        new = [name for name, there in sorted(peers.items()) if there and name not in settled]
        sent = link.send([Message(name, "invite", head) for name in new]) if new else []
        out |= dict(zip(sent, new, strict=True))
        for answer in link.receive(list(out)):
            name = out.pop(answer.id)
            if answer.error:
                continue  # it is invited again when it is connected
            try:
                if answer.kind != "card":
                    raise ValueError(answer.head.get("reason", f"it answered {answer.kind!r:.40}"))
                cards[name] = Card.from_plain(answer.head)
                notes.note(f"client {name!r} has joined")
            except ValueError as error:
                refused.add(name)
                notes.note(f"client {name!r} takes no part: {str(error)[:2000]}")
        # those who restart with other options may still come, if they are waited for
        refused = {name for name in refused if peers.get(name)} if patience.clients else refused
        everyone = bool(peers) and peers.keys() <= {*cards, *refused}
        if len(cards) >= patience.clients if patience.clients else everyone and cards:
            return cards
        if time.monotonic() > deadline:
            return _decide(cards, terms.config, patience)
        link.wait(patience.poll)


def _decide(cards: dict[str, Card], config: Config, patience: Patience) -> dict[str, Card]:
    """Begin with the clients that came in time, if they are enough."""
    least = config.cohort.min_clients
    if len(cards) >= max(1, least):
        return cards
    raise RunFailed(
        f"{counted(len(cards), 'client')} joined within {patience.join:g} s, and "
        f"cohort.min_clients = {least}; start again when clients can be reached"
    )
