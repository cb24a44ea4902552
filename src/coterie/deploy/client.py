"""A site of a federation: one process with its own data, states and models that answers a server.

It runs no code that a server sends. What a server asks for is a configuration, of which this client
builds method, networks and evaluators from its own installation.
"""

import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, RunFailed
from coterie.core.exact import exact_arithmetic, keep_freed_memory, return_freed_memory
from coterie.core.task import Failure, Reply
from coterie.data.datasets import Dataset
from coterie.deploy import messages, own_data, site_model
from coterie.deploy.desk import Desk
from coterie.deploy.federation import read_form
from coterie.deploy.handshake import Declined, Terms, check_terms, hash_schema
from coterie.deploy.link import ClientLink, Message
from coterie.deploy.own_data import OwnData
from coterie.deploy.own_table import OwnTable
from coterie.engine.client_states import StateStore
from coterie.engine.rundir import lock_folder
from coterie.engine.site import Site
from coterie.experiment.prepare import Experiment, assemble, check_machine

POLL = 0.2
_RUN = re.compile("[0-9a-f]{16}")
_LAST_WORDS, _HURRY = 15.0, 0.5  # seconds for the answers that are not sent yet
Say = Callable[[str], None]


@dataclass(frozen=True)
class Consent:
    """What the operator of a client agrees to."""

    deny: Collection[str] = ()  # what may not leave it
    own_code: bool = False  # whether a configuration may name modules of this machine
    config_hash: str = ""  # of the only configuration that may be run; empty: any


@dataclass(frozen=True)
class _Joined:
    """A run that this client takes part in."""

    run: str
    folder: Path
    experiment: Experiment
    site: Site


class Client:
    """Takes part in one run after the other, until the server ends it."""

    def __init__(
        self,
        link: ClientLink,
        data: OwnData,
        name: str,
        folder: Path,
        consent: Consent,
        *,
        device: str = "cpu",
        say: Say = print,
        poll: float = POLL,
    ) -> None:
        own_data.check_folder(folder)
        self._link, self._data, self._name, self._folder = link, data, name, folder
        self._consent, self._device, self._say, self._poll = consent, device, say, poll
        self._told = ""  # the hash of the configuration whose terms were printed
        self._table: tuple[str, OwnTable] | None = None  # that was read, by the configuration
        self._joined: _Joined | None = None
        self._rounds = 0

    def serve(self) -> str:
        """Answer requests until the server ends the run; return its last words."""
        keep_freed_memory()
        with lock_folder(self._folder), exact_arithmetic():
            desk, seconds = Desk(self._link, self._poll), _LAST_WORDS
            try:
                while True:
                    request = desk.next()
                    if request.kind == "end":
                        desk.answer(request, "bye")
                        return str(request.head.get("reason", ""))
                    self._handle(desk, request)
            except KeyboardInterrupt:
                seconds = _HURRY
                raise
            finally:
                desk.close(seconds)
                self._link.close()

    def _handle(self, desk: Desk, request: Message) -> None:
        """Answer one request; this client's part ends if one end refuses the other."""
        if request.kind == "refuse":
            desk.answer(request, "bye")
            reason = str(request.head.get("reason", ""))[:2000]
            raise RunFailed(f"the server refuses this client: {reason}")
        try:
            if request.kind == "invite":
                desk.answer(request, "card", self._introduce(request.head))
            elif request.kind == "sums":
                table = self._load_table(self._check(request.head))
                desk.answer(request, "sums", table.add_up(request.head["columns"]))
            elif request.kind == "squares":
                table = self._load_table(self._check(request.head))
                desk.answer(request, "squares", table.add_squares(request.head["means"]))
            elif request.kind == "join":
                self._joined = self._join(request.head)
                desk.answer(request, "joined", {"schema": request.head["schema"]})
            elif request.kind == "task":
                self._work(desk, request)
                return_freed_memory()
            elif request.kind == "model":
                self._keep(desk, request)
            else:
                raise Declined(f"no request is called {request.kind!r:.40}")
        except (Declined, CoterieError, KeyError, TypeError, ValueError) as error:
            reason = f"{error}" if isinstance(error, Declined | CoterieError) else repr(error)
            desk.answer(request, "refused", {"reason": reason})
            raise RunFailed(f"this client takes no part: {reason}") from error

    def _introduce(self, head: Mapping[str, Any]) -> Mapping[str, Any]:
        terms = self._check(head)
        data = self._load_table(terms) if self._data.is_table else self._load(terms)
        return own_data.make_card(terms.config, data, terms.classes).to_plain()

    def _check(self, head: Mapping[str, Any]) -> Terms:
        """Check the terms of a run, and print once what leaves this client."""
        consent = self._consent
        agreed, table = consent.config_hash, self._data.is_table
        terms = check_terms(head, consent.deny, consent.own_code, agreed, table)
        tables = terms.config.tables
        title = f"{tables['method']['name']}, {tables['objective']['name']}"
        if self._told != title:
            self._told = title
            self._say(f"the server asks for {title}, {terms.config.run.rounds} rounds")
            self._say(f"leaves this client: {terms.config.method.leaves}")
            for word, text in terms.learns.items():
                self._say(f"  {word}: {text}")
        return terms

    def _load(self, terms: Terms) -> Dataset:
        check_machine(terms.config.update("run", device=self._device))
        return self._data.load(terms.config)

    def _load_table(self, terms: Terms) -> OwnTable:
        """Read the table of this site; once, as a server asks for it several times."""
        key = terms.config.hash()
        if self._table is None or self._table[0] != key:
            check_machine(terms.config.update("run", device=self._device))
            self._table = (key, self._data.read_table(terms.config))
        return self._table[1]

    def _encode(self, terms: Terms, head: Mapping[str, Any]) -> Dataset:
        """Read the samples of a run, a table by the columns that its sites agreed on."""
        if not self._data.is_table:
            return self._load(terms)
        table, self._table = self._load_table(terms), None
        for note in table.notes:
            self._say(note)
        return table.encode(head["form"]["columns"], head["name"], self._name)

    def _join(self, head: Mapping[str, Any]) -> _Joined:
        """Build the site for a run, if both ends agree on what it computes."""
        if not (isinstance(head["run"], str) and _RUN.fullmatch(head["run"])):
            raise Declined("the server's run has no name")
        terms, client = self._check(head), int(head["id"])
        dataset, form = self._encode(terms, head), read_form(head["form"])
        own = own_data.describe_form(dataset)
        if own != (replace(form, columns=own.columns) if own.columns else form):
            raise Declined(f"its samples are {own.describe()}, those of the run {form.describe()}")
        dataset = own_data.number_classes(dataset, tuple(head["classes"]))
        share = own_data.make_share(terms.config, dataset, client, self._name)
        if (size := len(share.train[client])) != head["train"]:
            raise Declined(f"it has {size} training samples, and had {head['train']} before")
        folder = self._folder / head["run"]
        config = terms.config.update("run", device=self._device)
        experiment = assemble(config, folder, dataset, share, tuple(head["unseen"]))
        if (schema := hash_schema(experiment.parts)) != head["schema"]:
            raise Declined(f"its networks have the schema {schema[:8]}, not {head['schema'][:8]!s}")
        if head["state"] is not None:
            round, digest = head["state"]
            store = StateStore(folder / "clients")
            if problem := store.find_problem({client: (round, digest)}, int(head["last"])):
                raise Declined(f"the run relies on a state of this client: {problem}")
        self._say(f"joined the run {head['run']} as client {client}, states in {folder}")
        return _Joined(head["run"], folder, experiment, Site(experiment.spec, share))

    def _work(self, desk: Desk, request: Message) -> None:
        """Do a task of the run that was joined; others are a stranger's."""
        joined = self._joined
        if joined is None or request.head.get("run") != joined.run:
            desk.answer(request, "stranger")
            return
        spool = joined.folder / "spool"
        task = messages.read_task(request.head, request.body, spool / "broadcast")
        reply = joined.site.run(task)
        sent = (*reply.up.tensors, *reply.up.blobs)
        if withheld := [group for group in sent if group in self._consent.deny]:
            failure = Failure("failed", f"its operator denies {', '.join(withheld)}")
            reply = Reply(reply.client, error=failure)
        if reply.error is not None:
            self._say(f"round {task.round.index + 1}: {reply.error.kind}: {reply.error.reason}")
        elif task.op == "personal":
            site_model.describe_personal(joined.experiment, joined.folder, self._name)
        elif task.op == "update" and task.round.index + 1 > self._rounds:
            self._rounds = task.round.index + 1
            self._say(f"round {self._rounds}/{task.round.total}: trained in {reply.seconds:.3f} s")
        head, body = messages.write_reply(reply)
        shutil.rmtree(spool, ignore_errors=True)  # uploaded arrays are in the body now
        desk.answer(request, "reply", head, body)

    def _keep(self, desk: Desk, request: Message) -> None:
        """Keep the trained model of the run that was joined."""
        joined = self._joined
        if joined is None or request.head.get("run") != joined.run:
            desk.answer(request, "stranger")
            return
        site_model.keep_trained(joined.experiment, joined.folder, request.head, request.body)
        desk.answer(request, "kept")
        self._say(f"the trained model is in {joined.folder}")
