"""A run without data: the engine's loop on the server, over clients at their sites.

The server learns the form of the data from the cards of the clients, then runs as any other run
does: the same loop, checkpoints, metrics, outputs and report, in a run directory.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.core import exact
from coterie.core.errors import ConfigError, RunFailed
from coterie.core.formatting import counted
from coterie.core.task import ClientId
from coterie.data.datasets import Dataset
from coterie.data.labels import ClassNames
from coterie.deploy import own_data
from coterie.deploy.executor import GRACE, POLL, RemoteSites
from coterie.deploy.federation import FILE, Card, Federation, agree
from coterie.deploy.handshake import Declined, Terms, hash_schema, list_learned, make_common
from coterie.deploy.link import Message, ServerLink
from coterie.deploy.own_data import OwnData
from coterie.engine.loop import Standing
from coterie.engine.record import Recorder, Recorders
from coterie.experiment.config import Config
from coterie.experiment.prepare import Experiment, assemble, check_machine, check_rounds
from coterie.experiment.result import Result
from coterie.experiment.run import default_folder, drive, open_folder
from coterie.experiment.settle import settle_remote
from coterie.report.progress import announce, announce_data

WAIT = 600.0  # seconds for clients to come
_CLASSES = 2  # the fewest that a classifier can separate


@dataclass(frozen=True)
class Patience:
    """How long a server waits, in seconds, and for whom before the first round."""

    clients: int = 0  # that have to join; 0: all that are registered
    join: float = WAIT
    grace: float = GRACE  # for a sign of life of a client that has a task
    poll: float = POLL


_PATIENCE = Patience()


def serve(
    config: Config,
    link: ServerLink,
    folder: Path | None = None,
    *,
    resume: bool = False,
    allow_inexact: bool = False,
    classes: ClassNames = (),
    patience: Patience = _PATIENCE,
    recorders: Sequence[Recorder] = (),
) -> Result:
    """Gather clients, run to the end, write the outputs; `classes` are stated, or asked for."""
    tests = OwnData(config.data.root) if config.data.root else None
    common = make_common(config)
    check_machine(common)
    folder = folder or default_folder(common)
    notes, started = Recorders(recorders), list[RemoteSites]()
    with exact.exact_arithmetic(), open_folder(folder, resume, "deploy"):
        if (folder / FILE).exists():
            federation = Federation.read(folder)
        else:
            announce(recorders, "waiting for clients")
            terms = Terms(common, list_learned(common, classes), classes)
            federation = _form(link, terms, patience, notes)
            federation.write(folder)
        experiment = prepare_remote(config, common, folder, federation, tests)
        announce_data(recorders, experiment.dataset.describe())

        def start(experiment: Experiment, standing: Standing | None) -> RemoteSites:
            states = standing.position.states if standing else {}
            made = RemoteSites(
                link,
                federation.clients,
                _Invitation(experiment, federation).for_client,
                folder,
                run=federation.run,
                states=states,
                timeout=experiment.config.executor.timeout,
                grace=patience.grace,
                poll=patience.poll,
            )
            started.append(made)
            return made

        drive(experiment, folder, allow_inexact, recorders, start)
        remote = started[0] if started else start(experiment, None)
        remote.end("the run is finished")
    return Result(folder)


def prepare_remote(
    config: Config, common: Config, folder: Path, federation: Federation, tests: OwnData | None
) -> Experiment:
    """Prepare a run on data that are elsewhere, and check that all fits together."""
    if config.objective.labels and len(federation.classes) < _CLASSES:
        name = config.tables["objective"]["name"]
        raise ConfigError(
            f"objective.name = {name!r} needs two classes or more, and the clients have "
            f"{len(federation.classes)}"
        )
    dataset, shares = federation.blank_data(folder)
    own = common.update("data", root=config.data.root).update(
        "net", weights=config.net.weights, weights_sha256=config.net.weights_sha256
    )
    settled = settle_remote(own, dataset, shares, federation.labelled, tests is not None)
    if tests is not None:
        dataset = _load_tests(tests, common, dataset)
    experiment = assemble(settled.config, folder, dataset, shares, settled.unseen)
    learned = list_learned(make_common(settled.config))
    leaves = (f"leaves each client: {word}: {text}" for word, text in learned.items())
    experiment = replace(experiment, notes=(*settled.notes, *leaves), remote=True)
    check_rounds(experiment)
    return experiment


def _load_tests(tests: OwnData, common: Config, blank: Dataset) -> Dataset:
    """Take the server's own test samples into the data, if they are of the same form."""
    loaded = tests.load(common)
    own, form = own_data.describe_form(loaded), own_data.describe_form(blank)
    try:
        if own != form:
            raise Declined(f"it has {own.describe()}, the clients {form.describe()}")
        loaded = own_data.number_classes(loaded, blank.class_names)
    except Declined as reason:
        raise ConfigError(f"data.root = {tests.root!r} cannot be tested with: {reason}") from None
    return replace(blank, x_test=loaded.x_test, y_test=loaded.y_test)


class _Invitation:
    """What a client needs to join the run."""

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        common = make_common(experiment.config)
        self._federation = federation
        self._head = {
            **Terms(
                common, list_learned(common, federation.classes), federation.classes
            ).to_plain(),
            "form": federation.to_plain()["form"],
            "classes": list(federation.classes),
            "unseen": list(experiment.spec.unseen),
            "schema": hash_schema(experiment.parts),
        }

    def for_client(self, client: ClientId) -> Mapping[str, Any]:
        """Write it for one client."""
        sizes = {info.id: info.examples for info in self._federation.clients}
        return {**self._head, "id": client, "train": sizes[client]}


def _form(link: ServerLink, terms: Terms, patience: Patience, notes: Recorders) -> Federation:
    """Gather the cards of clients; those that do not fit together are told and left out."""
    cards = gather(link, terms, patience, notes)
    federation, refused = agree(cards, terms.classes)
    link.send(
        [Message(name, "refuse", {"reason": reason}) for name, reason in sorted(refused.items())]
    )
    for name, reason in sorted(refused.items()):
        notes.note(f"client {name!r} is refused: {reason}")
    return federation


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
        time.sleep(patience.poll)


def _decide(cards: dict[str, Card], config: Config, patience: Patience) -> dict[str, Card]:
    """Begin with the clients that came in time, if they are enough."""
    least = config.cohort.min_clients
    if len(cards) >= max(1, least):
        return cards
    raise RunFailed(
        f"{counted(len(cards), 'client')} joined within {patience.join:g} s, and "
        f"cohort.min_clients = {least}; start again when clients can be reached"
    )
