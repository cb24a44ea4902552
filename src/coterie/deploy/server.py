"""A run without data: the engine's loop on the server, over clients at their sites.

The server learns the form of the data from the cards of the clients, then runs as any other run
does: the same loop, checkpoints, metrics, outputs and report, in a run directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core import exact
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.task import ClientId
from coterie.data.datasets import Dataset
from coterie.data.labels import ClassNames
from coterie.deploy import own_data
from coterie.deploy.executor import RemoteSites
from coterie.deploy.federation import FILE, Federation
from coterie.deploy.gather import Patience, form_federation
from coterie.deploy.handshake import Declined, Terms, hash_schema, list_learned, make_common
from coterie.deploy.link import ServerLink
from coterie.deploy.own_data import OwnData
from coterie.engine import rundir
from coterie.engine.loop import Standing
from coterie.engine.record import Recorder, Recorders
from coterie.experiment.config import Config
from coterie.experiment.model_file import read_model_file
from coterie.experiment.prepare import Experiment, assemble, check_machine, check_rounds
from coterie.experiment.privacy import check_budget
from coterie.experiment.result import Result
from coterie.experiment.run import default_folder, drive, open_folder
from coterie.experiment.settle import settle_remote
from coterie.report.progress import announce, announce_data

_CLASSES = 2  # the fewest that a classifier can separate
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
    check_budget(common)
    folder = folder or default_folder(common)
    notes, started = Recorders(recorders), list[RemoteSites]()
    with exact.exact_arithmetic(), open_folder(folder, resume, "deploy"):
        if (folder / FILE).exists():
            federation = Federation.read(folder)
        elif rundir.is_used(folder):
            raise CheckpointError(
                f"{folder / FILE} is missing, so that nothing says which clients the run in "
                f"{folder} has; put it back, or choose another --out"
            )
        else:
            announce(recorders, "waiting for clients")
            terms = Terms(common, list_learned(common, classes), classes)
            federation = form_federation(link, terms, patience, notes)
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
        _hand_out(remote, folder)
        remote.end("the run is finished")
    return Result(folder)


def _hand_out(remote: RemoteSites, folder: Path) -> None:
    """Give clients the trained model, if the method makes one for all."""
    last = read_model_file(folder).weights.last
    if last is not None and last.round is not None:
        remote.hand_out((folder / last.file).read_bytes(), last.round)


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
    learned = list_learned(make_common(settled.config), table=bool(federation.form.columns))
    leaves = (f"leaves each client: {word}: {text}" for word, text in learned.items())
    notes = (*settled.config.notes, *settled.notes, *leaves)
    return check_rounds(replace(experiment, notes=notes, remote=True))


def _load_tests(tests: OwnData, common: Config, blank: Dataset) -> Dataset:
    """Take the server's own test samples into the data, if they are of the same form."""
    form = own_data.describe_form(blank)
    try:
        if tests.is_table != bool(blank.columns):
            raise Declined(f"the clients have {form.describe()}")
        if tests.is_table:
            loaded = tests.read_table(common).encode_tests(blank.columns)
        else:
            loaded = tests.load(common)
        own = own_data.describe_form(loaded)
        if own != form:
            raise Declined(f"it has {own.describe()}, the clients {form.describe()}")
        loaded = own_data.number_classes(loaded, blank.class_names)
    except Declined as reason:
        raise ConfigError(f"data.root = {tests.root!r} cannot be tested with: {reason}") from None
    fingerprint = f"{blank.fingerprint}:{loaded.fingerprint}"
    return replace(blank, x_test=loaded.x_test, y_test=loaded.y_test, fingerprint=fingerprint)


class _Invitation:
    """What a client needs to join the run."""

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        common = make_common(experiment.config)
        self._federation = federation
        classes, table = federation.classes, bool(federation.form.columns)
        self._head = {
            **Terms(common, list_learned(common, classes, table), classes).to_plain(),
            "form": federation.to_plain()["form"],
            "classes": list(federation.classes),
            "unseen": list(experiment.spec.unseen),
            "schema": hash_schema(experiment.parts),
        }

    def for_client(self, client: ClientId) -> Mapping[str, Any]:
        """Write it for one client."""
        sizes = {info.id: info.examples for info in self._federation.clients}
        name = self._federation.name(client)
        return {**self._head, "id": client, "name": name, "train": sizes[client]}
