"""When and how a model is evaluated during a run."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import CheckpointError, RunFailed
from coterie.core.schema import Schema, describe
from coterie.core.settings import EvaluateSettings
from coterie.core.task import METHOD, Attempt, ClientId, Reply, Round
from coterie.engine.cohort import Invited, largest_first, split_unseen
from coterie.engine.play import NOTHING, Player
from coterie.engine.record import ClientEvent
from coterie.engine.spec import Parts
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator
from coterie.kit.stages import plan_rounds

UNSEEN = "unseen_"  # begins the metrics of clients that never train
CONFUSION = "confusion"  # the group of a reply with a confusion matrix for each evaluator


@dataclass
class Measured:
    """The metrics of an evaluation, and the bytes that were sent for it."""

    metrics: dict[str, float] = field(default_factory=dict)
    clients: dict[str, dict[str, float]] = field(default_factory=dict)  # by client name
    confusion: list[list[int]] = field(default_factory=list)  # rows: true class
    client_confusion: dict[str, list[list[int]]] = field(default_factory=dict)  # by client name
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Evaluation:
    """The evaluators of a run, over the data that the server of a simulation may see."""

    settings: EvaluateSettings
    data: Shard
    holdout: Shard | None = None  # training samples that were set aside, as its test samples
    class_names: tuple[int | str, ...] = ()
    warned: set[str] = field(default_factory=set, compare=False)  # evaluators that have warned

    def due(self, round: Round) -> bool:
        """Whether a round ends with an evaluation; the last one always does."""
        every = self.settings.every
        return round.last or bool(every and (round.index + 1) % every == 0)

    def measure(
        self, player: Player, round: Round, server: ServerState, attempt: Attempt
    ) -> Measured:
        """Run every evaluator on the model as it is after a round."""
        parts, recorders = player.parts, player.recorders
        evaluating = _Evaluating(player, round, server, attempt)
        evaluating.on_server(self.data, self.holdout)
        evaluating.on_clients()
        for name, program in parts.programs.items():
            if parts.due(name, round):
                evaluating.run_program(name, program)
        result = evaluating.result
        if self.settings.targets and self.settings.metric not in result.metrics:
            known = ", ".join(result.metrics)
            recorders.note(
                f"evaluate.metric = {self.settings.metric!r} is not measured; there are: {known}"
            )
        for name, value in list(result.metrics.items()):
            if not math.isfinite(value):
                del result.metrics[name]
                recorders.note(f"round {round.index + 1}: {name} is {value}, left out")
        for name, evaluator in parts.evaluators.items():
            if name not in self.warned and (text := evaluator.warning(result.metrics)):
                self.warned.add(name)
                recorders.note(f"round {round.index + 1}: {text}")
        return result


@dataclass(frozen=True)
class _Evaluating:
    """One evaluation: the model after a round, and what has been measured on it so far."""

    player: Player
    round: Round
    server: ServerState
    attempt: Attempt
    result: Measured = field(default_factory=Measured)

    def on_server(self, data: Shard, holdout: Shard | None) -> None:
        """Run the evaluators of the server on the global model, if there is one."""
        parts, nets = self.player.parts, self.player.parts.nets(METHOD)
        weights = parts.method.model(self.server)
        chosen = [e for e in parts.due_evaluators(self.round).values() if e.where == "server"]
        if weights is None or not chosen:
            return
        net = nets.frozen_on_server("model", weights)
        seed, metrics = seeds.derive(parts.spec.seed, "evaluate"), self.result.metrics
        with parts.arithmetic(), seeds.scoped(self.round.torch_seed()):
            used = [(evaluator, _choose(evaluator, data)) for evaluator in chosen]
            for evaluator, samples in used:
                metrics.update(evaluator(net, samples, seed))
            for evaluator, samples in sorted(used, key=lambda pair: _lacks_classifier(pair[0])):
                counts = evaluator.confusion(net, samples)
                if counts is not None:
                    self.result.confusion = counts.tolist()
                    break
            if holdout is not None:
                for evaluator in chosen:
                    measured = evaluator(net, _choose(evaluator, holdout), seed)
                    metrics.update({f"holdout_{name}": value for name, value in measured.items()})
        nets.release()

    def on_clients(self) -> None:
        """Run the evaluators of clients; without a global model, those of the server too."""
        parts = self.player.parts
        alone = parts.method.model(self.server) is None
        chosen = {
            name: evaluator
            for name, evaluator in parts.due_evaluators(self.round).items()
            if alone or evaluator.where == "client"
        }
        everyone = self.player.executor.clients()
        trained, unseen = split_unseen(everyone, parts.spec.unseen)
        anyone = alone or any(evaluator.all_tests for evaluator in chosen.values())
        asked = [info for info in trained if anyone or info.tests > 0]
        asked += [info for info in unseen if info.tests > 0]
        if not chosen or not asked:
            return
        down = evaluation_payload(parts, self.server, self.round)
        scores: dict[str, dict[ClientId, dict[str, float]]] = {name: {} for name in chosen}
        counts: dict[str, dict[ClientId, Tensor]] = {name: {} for name in chosen}
        square = ("int64", (parts.spec.classes, parts.spec.classes))
        matrices = Schema({CONFUSION: dict.fromkeys(chosen, square)}, partial=True)
        for reply in self._ask(largest_first(asked), down, METHOD, matrices):
            for key, value in reply.metrics.items():
                name, _, metric = key.partition("/")
                scores[name].setdefault(reply.client, {})[metric] = value
            for name, matrix in reply.up.get(CONFUSION).items():
                counts[name][reply.client] = matrix
            self.result.bytes_up += reply.up.nbytes()
        names = {info.id: info.name for info in everyone}
        # a confusion matrix of the whole test set comes before one of the clients' parts
        ordered = sorted(chosen.items(), key=lambda item: _lacks_classifier(item[1]))
        for name, evaluator in sorted(ordered, key=lambda item: item[1].where == "client"):
            self._keep_scores(evaluator, dict(sorted(scores[name].items())), names)
            self._keep_confusion(evaluator, dict(sorted(counts[name].items())), names)

    def _keep_scores(
        self,
        evaluator: Evaluator,
        scores: Mapping[ClientId, Mapping[str, float]],
        names: Mapping[ClientId, str],
    ) -> None:
        """Summarise what clients measured, those that never train apart; keep it by name."""
        own, unseen = evaluator.where == "client", self.player.parts.spec.unseen
        trained = {client: values for client, values in scores.items() if client not in unseen}
        apart = {client: values for client, values in scores.items() if client in unseen}
        if trained:
            summarise = evaluator.summarise if own else _over_models
            self.result.metrics.update(summarise(trained))
        if apart:
            for name, value in evaluator.summarise(apart).items():
                self.result.metrics[f"{UNSEEN}{name.removeprefix('client_')}"] = value
        prefix = "" if own else "global_"  # metrics of a client's model on the global test data
        for client, metrics in scores.items():
            finite = {f"{prefix}{k}": v for k, v in metrics.items() if math.isfinite(v)}
            self.result.clients.setdefault(names[client], {}).update(finite)

    def _keep_confusion(
        self,
        evaluator: Evaluator,
        counts: Mapping[ClientId, Tensor],
        names: Mapping[ClientId, str],
    ) -> None:
        """Keep the clients' confusion matrices; their sum where the server has none."""
        unseen = self.player.parts.spec.unseen
        trained = [matrix for client, matrix in counts.items() if client not in unseen]
        if trained and not self.result.confusion:
            self.result.confusion = torch.stack(trained).sum(dim=0).tolist()
        for client, matrix in counts.items() if evaluator.where == "client" else ():
            self.result.client_confusion.setdefault(names[client], matrix.tolist())

    def run_program(self, name: str, program: FederatedEvaluator) -> None:
        """Play the rounds of an evaluator that is a federated program."""
        parts = self.player.parts
        clients, _ = split_unseen(self.player.executor.clients(), parts.spec.unseen)
        invited, weights = largest_first(clients), parts.method.model(self.server)
        if not program.has_begin():
            weights = parts.global_model(self.server)
        else:
            if program.own_models or weights is None:
                down = evaluation_payload(parts, self.server, self.round)
            else:
                down = Bundle({"evaluated": weights})
            invited = [reply.client for reply in self._ask(invited, down, name)]
        state = program.start(parts.nets(name), weights or {})
        seed = seeds.derive(parts.spec.seed, f"program/{name}", self.round.index)
        cohort, player = Invited(tuple(invited)), self.player.for_evaluators()
        for stage, step in plan_rounds(parts.stages(name), len(clients), seed):
            played = player.round(name, stage, step, state, cohort, self.attempt)
            self.result.bytes_up += played.replies.bytes_up
            self.result.bytes_down += played.replies.bytes_down
            if played.server is None or not played.replies.valid:
                problem = played.replies.first_problem()
                raise RunFailed(f"the evaluator {name!r} got no answer: {problem}")
            state = played.server
        with parts.arithmetic(), seeds.scoped(step.torch_seed()):
            metrics = program.finish(player.context(name, stage, step), state)
        self.result.metrics.update(metrics)
        parts.nets(name).release()

    def _ask(
        self, clients: Sequence[ClientId], down: Payload, program: str, expected: Schema = NOTHING
    ) -> Iterator[Reply]:
        """Yield the replies of clients that could be evaluated; the others leave a note."""
        round, recorders = self.round, self.player.recorders
        replies = self.player.ask("evaluate", clients, down, round, self.attempt, program, expected)
        for done, reply in enumerate(replies, start=1):
            self.result.bytes_down += down.nbytes()
            if reply.error is not None and reply.error.kind == "disk":
                raise CheckpointError(reply.error.reason)
            if reply.error is None:
                problem, trace = _find_problem(reply, expected), ""
            else:
                problem, trace = reply.error.reason, reply.error.trace
            if problem is None:
                yield reply
            else:
                recorders.note(f"client {reply.client} was not evaluated: {problem}", trace=trace)
            recorders.emit(ClientEvent(round.index, round.total, done, len(clients), "testing"))


def evaluation_payload(parts: Parts, server: ServerState, round: Round) -> Payload:
    """Bundle what a client needs to be evaluated: the tested model, and what `personal` reads."""
    if not parts.method.has("personal"):
        return Bundle({"evaluated": parts.global_model(server)})
    stage, evaluated = parts.stage(METHOD, round.stage), parts.method.model(server)
    assert stage.broadcast  # every method has one
    down = stage.broadcast(server, round)
    return down if evaluated is None else down.replace(evaluated=evaluated)


def _find_problem(reply: Reply, expected: Schema) -> str | None:
    """Say why what a client measured cannot be used, or return None."""
    if problem := expected.problem(describe(reply.up)):
        return problem
    asked = expected.groups.get(CONFUSION, {})
    for name, value in reply.metrics.items():
        if name.partition("/")[0] not in asked:
            return f"it measured {name!r}, which it was not asked for"
        if type(value) is not float:
            return f"it measured {name} = {value!r}"
    for name, matrix in reply.up.get(CONFUSION).items():
        if int(matrix.min()) < 0:
            return f"{CONFUSION}/{name} holds a negative count"
    return None


def _lacks_classifier(evaluator: Evaluator) -> bool:
    """Whether it measures without a classifier: a confusion matrix of one comes first."""
    return "classifier" not in evaluator.needs


def _choose(evaluator: Evaluator, data: Shard) -> Shard:
    """Leave out samples without a label for an evaluator that needs labels."""
    return data.labelled() if evaluator.labels else data


def _over_models(scores: Mapping[ClientId, Mapping[str, float]]) -> dict[str, float]:
    """Compute mean and spread over the clients' models, where there is no global one."""
    summary: dict[str, float] = {}
    for metric in next(iter(scores.values())):
        values = [metrics[metric] for metrics in scores.values() if metric in metrics]
        summary[metric] = statistics.fmean(values)
        summary[f"{metric}_std"] = statistics.pstdev(values)
    return summary
