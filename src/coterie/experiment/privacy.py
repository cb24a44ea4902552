"""What may run with `[privacy]`, and what the user is told of it at the start.

The server's function sees one private mean, so a method may do with it what it likes. Refused is
whatever else of clients' data would come out beside the model: other groups of uploads, what
clients measure, statistics of training samples.
"""

from typing import TYPE_CHECKING

from coterie.core.errors import ConfigError
from coterie.core.formatting import counted
from coterie.core.task import METHOD
from coterie.engine.privacy import MODEL, Privacy
from coterie.kit.accounting import check_installed, find_noise
from coterie.kit.method import FederatedEvaluator
from coterie.kit.rules import Mean
from coterie.kit.stages import Stage, resolve

if TYPE_CHECKING:
    from coterie.experiment.config import Config
    from coterie.experiment.prepare import Experiment


def check_private(config: "Config") -> None:
    """Refuse parts through which more of a client would be known than the private model."""
    if not config.privacy.clip:
        return
    name = config.tables["method"]["name"]
    if config.method.pooled:
        raise ConfigError(
            f"method.name = {name!r} merges all clients into one, and privacy hides one among "
            "many: leave privacy.clip at 0"
        )
    for stage in resolve(config.method, config.run.rounds):
        if problem := _find_leak(stage):
            raise ConfigError(
                f"method.name = {name!r} {problem}, and privacy covers the mean of 'model' alone: "
                "choose a method that sends nothing else, as fedavg, fedprox and moon"
            )
    for key, evaluator in config.evaluators.items():
        if isinstance(evaluator, FederatedEvaluator) or evaluator.where == "client":
            raise ConfigError(
                f"evaluate.with = {key!r} is measured by clients, which privacy does not cover: "
                "name evaluators of the server, as evaluate.with=accuracy"
            )
    if config.cohort.min_clients > 1:
        raise ConfigError(
            f"cohort.min_clients = {config.cohort.min_clients} would skip rounds by who answered, "
            "which privacy does not cover: leave it at 1"
        )
    if config.record.embedding not in (0, "auto"):
        raise ConfigError(
            "record.embedding shows training samples, which privacy is to hide: leave it out"
        )


def _find_leak(stage: Stage) -> str | None:
    """Say what a stage takes from clients beside their weights, or return None."""
    others = sorted({*(stage.uploads or ()), *stage.arrays} - {MODEL})
    if others:
        return f"sends {' and '.join(map(repr, others))} in the stage {stage.name!r}"
    if (stage.uploads or {}).get(MODEL) != Mean():
        return f"sends no mean of weights in the stage {stage.name!r}"
    if stage.cohort != "sample" or stage.drop or stage.required or stage.quorum > 1:
        return f"needs certain clients in the stage {stage.name!r}"
    return None


def check_budget(config: "Config") -> None:
    """Check that epsilon can be counted, and that the budget allows what is configured."""
    if not config.privacy.clip:
        return
    check_installed()
    terms, settings = _make(config), config.privacy
    planned = _plan(config)
    rounds = terms.count_rounds(planned)
    if not rounds:
        least = find_noise(settings.epsilon, terms.rate, 1, settings.delta, settings.accountant)
        raise ConfigError(
            f"privacy.epsilon = {settings.epsilon:g} does not allow one round: it takes "
            f"privacy.noise of {least:g} or more, not {settings.noise:g}"
        )
    if rounds < planned and config.evaluate.last:
        raise ConfigError(
            f"evaluate.last waits for round {planned}, and privacy.epsilon = {settings.epsilon:g} "
            f"allows {counted(rounds, 'round')}: set run.rounds={rounds}"
        )


def make_privacy(experiment: "Experiment") -> Privacy | None:
    """Make the terms of a private run; None if it is not one."""
    config = experiment.config
    return _make(config, len(experiment.trained.clients)) if config.privacy.clip else None


def _make(config: "Config", clients: int = 0) -> Privacy:
    return Privacy(config.privacy, config.cohort.fraction, clients)


def _plan(config: "Config") -> int:
    """Count the rounds of all stages."""
    return sum(stage.rounds for stage in resolve(config.method, config.run.rounds))


def settle_privacy(experiment: "Experiment") -> tuple[str, ...]:
    """Check a private run against its data and network; return what to tell the user."""
    terms = make_privacy(experiment)
    if terms is None:
        return ()
    _check_statistics(experiment)
    settings, planned = terms.settings, _plan(experiment.config)
    if settings.delta * terms.clients >= 1.0:
        raise ConfigError(
            f"privacy.delta = {settings.delta:g} allows the publication of one of "
            f"{terms.clients} clients: choose one well below {1.0 / terms.clients:.2g}"
        )
    rounds = terms.count_rounds(planned)
    text = (
        f"differential privacy for clients: updates clipped to {settings.clip:g}, noise "
        f"{settings.noise:g}, each client in a round with probability {terms.rate:g}: epsilon "
        f"{terms.spent(rounds):.4g} at delta {settings.delta:g} after {counted(rounds, 'round')}"
    )
    if rounds < planned:
        text += f" of {planned}, as many as privacy.epsilon = {settings.epsilon:g} allows"
    return (text,)


def _check_statistics(experiment: "Experiment") -> None:
    """Refuse statistics of training samples that would leave without noise, or not bear any."""
    config = experiment.config
    net = experiment.parts.nets(METHOD)
    shared = net.weights()
    buffers = [n for n, b in net["model"].named_buffers() if n in shared and b.is_floating_point()]
    if buffers:
        raise ConfigError(
            f"privacy adds noise to all that is averaged, and {buffers[0]!r} is a statistic that "
            "bears none: use net.bn_buffers=local, or net.norm=gn if the backbone has it"
        )
    data = config.data
    if experiment.dataset.columns and (data.standardise != "none" or data.missing == "mean"):
        raise ConfigError(
            f"data.standardise = {data.standardise!r} and data.missing = {data.missing!r} take "
            "means of training rows, without noise: with privacy use data.standardise=none and "
            "data.missing=drop or refuse"
        )
