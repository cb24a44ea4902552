"""When and how a model is evaluated during a run."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import CheckpointError, RunFailed
from coterie.core.settings import EvaluateSettings
from coterie.core.task import METHOD, Attempt, ClientId, Reply, Round
from coterie.engine.cohort import Invited, largest_first
from coterie.engine.play import Player
from coterie.engine.record import ClientEvent
from coterie.engine.spec import Parts
from coterie.kit.context import Shard
from coterie.kit.method import FederatedEvaluator
from coterie.kit.stages import plan_rounds


@dataclass
class Measured:
    """The metrics of an evaluation, and the bytes it took."""

    metrics: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Evaluation:
    """The evaluators of a run, over the data that the server of a simulation may see."""

    settings: EvaluateSettings
    data: Shard
    holdout: Shard | None = None  # training samples that were set aside, as its test samples
    warned: set[str] = field(default_factory=set, compare=False)  # evaluators that have warned

    def due(self, round: Round) -> bool:
        """Whether a round ends with an evaluation; the last one always does."""
        every = self.settings.every
        return round.last or bool(every and (round.index + 1) % every == 0)

    def measure(
        self, player: Player, round: Round, server: ServerState, attempt: Attempt
    ) -> Measured:
        """Run every evaluator on the model as it stands after a round."""
        result, parts, recorders = Measured(), player.parts, player.recorders
        if parts.method.model(server) is not None:
            result.metrics.update(self._on_server(player, round, server))
        self._on_clients(player, round, server, attempt, result)
        for name, program in parts.programs.items():
            if parts.due(name, round):
                self._federated(name, program, player, round, server, attempt, result)
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

    def _on_server(self, player: Player, round: Round, server: ServerState) -> Mapping[str, float]:
        parts = player.parts
        chosen = [
            evaluator
            for name, evaluator in parts.evaluators.items()
            if evaluator.where == "server" and parts.due(name, round)
        ]
        if not chosen:
            return {}
        net = parts.nets(METHOD).frozen_on_server("model", parts.global_model(server))
        seed = seeds.derive(parts.spec.seed, "evaluate")
        metrics: dict[str, float] = {}
        with parts.kernels(), seeds.scoped(round.torch_seed()):
            for evaluator in chosen:
                metrics.update(evaluator(net, self.data, seed))
            if self.holdout is not None:
                for evaluator in chosen:
                    apart = evaluator(net, self.holdout, seed)
                    metrics.update({f"holdout_{name}": value for name, value in apart.items()})
        parts.nets(METHOD).release()
        return metrics

    def _on_clients(
        self,
        player: Player,
        round: Round,
        server: ServerState,
        attempt: Attempt,
        result: Measured,
    ) -> None:
        parts, alone = player.parts, player.parts.method.model(server) is None
        chosen = {
            name: evaluator
            for name, evaluator in parts.evaluators.items()
            if (alone or evaluator.where == "client") and parts.due(name, round)
        }
        asked = [info for info in player.executor.clients() if alone or info.tests > 0]
        if not chosen or not asked:
            return
        down, clients = evaluation_payload(parts, server, round), largest_first(asked)
        scores: dict[str, dict[ClientId, dict[str, float]]] = {name: {} for name in chosen}
        for reply in _answers(player, clients, down, round, attempt, result):
            for key, value in reply.metrics.items():
                name, _, metric = key.partition("/")
                scores[name].setdefault(reply.client, {})[metric] = value
        for name, evaluator in chosen.items():
            if scores[name]:
                in_order = dict(sorted(scores[name].items()))
                over = evaluator.summarise if evaluator.where == "client" else _over_models
                result.metrics.update(over(in_order))

    def _federated(
        self,
        name: str,
        program: FederatedEvaluator,
        player: Player,
        round: Round,
        server: ServerState,
        attempt: Attempt,
        result: Measured,
    ) -> None:
        """Play the rounds of an evaluator that is a federated program."""
        parts, clients = player.parts, player.executor.clients()
        invited, weights = largest_first(clients), parts.method.model(server)
        if program.has_begin():
            down = Bundle({"evaluated": weights}) if weights is not None else Bundle()
            if program.own_models or weights is None:
                down = evaluation_payload(parts, server, round)
            began = _answers(player, invited, down, round, attempt, result, name)
            invited = [reply.client for reply in began]
        else:
            weights = parts.global_model(server)
        state = program.start(parts.nets(name), weights or {})
        seed = seeds.derive(parts.spec.seed, f"program/{name}", round.index)
        cohort, inside = Invited(tuple(invited)), player.for_evaluators()
        for stage, step in plan_rounds(parts.stages(name), len(clients), seed):
            played = inside.round(name, stage, step, state, cohort, attempt)
            result.bytes_up += played.replies.bytes_up
            result.bytes_down += played.replies.bytes_down
            if played.server is None or not played.replies.valid:
                problem = played.replies.first_problem()
                raise RunFailed(f"the evaluator {name!r} got no answer: {problem}")
            state = played.server
        with parts.kernels(), seeds.scoped(step.torch_seed()):
            result.metrics.update(program.finish(inside.context(name, stage, step), state))
        parts.nets(name).release()


def _answers(
    player: Player,
    clients: Sequence[ClientId],
    down: Payload,
    round: Round,
    attempt: Attempt,
    result: Measured,
    program: str = METHOD,
) -> Iterator[Reply]:
    """Pass on the replies of clients that could be evaluated; the others leave a note."""
    replies = player.ask("evaluate", clients, down, round, attempt, program)
    for done, reply in enumerate(replies, start=1):
        result.bytes_down += down.nbytes()
        if reply.error is not None:
            if reply.error.kind == "disk":
                raise CheckpointError(reply.error.reason)
            text = f"client {reply.client} was not evaluated: {reply.error.reason}"
            player.recorders.note(text, trace=reply.error.trace)
            continue
        yield reply
        event = ClientEvent(round.index, round.total, done, len(clients), "testing")
        player.recorders.emit(event)


def evaluation_payload(parts: Parts, server: ServerState, round: Round) -> Payload:
    """What a client needs to be evaluated: the model under test, and what `personal` reads."""
    evaluated = parts.method.model(server)
    if not parts.method.has("personal"):
        return Bundle({"evaluated": parts.global_model(server)})
    stage = parts.stage(METHOD, round.stage)
    assert stage.broadcast  # every method has one
    down = stage.broadcast(server, round)
    return down if evaluated is None else down.replace(evaluated=evaluated)


def _over_models(scores: Mapping[ClientId, Mapping[str, float]]) -> dict[str, float]:
    """Where clients have only models of their own: the mean and spread over these models."""
    summary: dict[str, float] = {}
    for metric in next(iter(scores.values())):
        values = [metrics[metric] for metrics in scores.values()]
        summary[metric] = statistics.fmean(values)
        summary[f"{metric}_std"] = statistics.pstdev(values)
    return summary
