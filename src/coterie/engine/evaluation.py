"""When and how a model is evaluated during a run."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import CheckpointError, NoReplies, RunFailed
from coterie.core.settings import EvaluateSettings, ServerSettings
from coterie.core.task import (
    METHOD,
    Attempt,
    ClientId,
    ClientInfo,
    Executor,
    Reply,
    Round,
    Stage,
    Task,
)
from coterie.engine.record import ClientEvent, NoteEvent, Recorder
from coterie.engine.replies import Tally
from coterie.engine.spec import Parts
from coterie.kit.context import ServerContext, Shard
from coterie.kit.method import FederatedEvaluator


@dataclass
class Measured:
    """What an evaluation found and what it cost."""

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
        self,
        parts: Parts,
        executor: Executor,
        round: Round,
        server: ServerState,
        attempt: Attempt,
        recorders: Sequence[Recorder],
    ) -> Measured:
        """Run every evaluator on the model as it stands after a round."""
        result = Measured()
        if parts.method.model(server) is not None:
            result.metrics.update(self._on_server(parts, round, server))
        self._on_clients(parts, executor, round, server, attempt, recorders, result)
        for name, program in parts.programs.items():
            if not parts.due(name, round):
                continue
            self._federated(
                name, program, parts, executor, round, server, attempt, recorders, result
            )
        if self.settings.targets and self.settings.metric not in result.metrics:
            known = ", ".join(result.metrics)
            note = f"evaluate.metric = {self.settings.metric!r} is not measured; there are: {known}"
            for record in recorders:
                record(NoteEvent(note))
        for name, value in list(result.metrics.items()):
            if not math.isfinite(value):
                del result.metrics[name]
                for record in recorders:
                    record(NoteEvent(f"round {round.index + 1}: {name} is {value}, left out"))
        for name, evaluator in parts.evaluators.items():
            if name not in self.warned and (text := evaluator.warning(result.metrics)):
                self.warned.add(name)
                for record in recorders:
                    record(NoteEvent(f"round {round.index + 1}: {text}"))
        return result

    def _on_server(self, parts: Parts, round: Round, server: ServerState) -> Mapping[str, float]:
        chosen = [
            one
            for name, one in parts.evaluators.items()
            if one.where == "server" and parts.due(name, round)
        ]
        if not chosen:
            return {}
        ctx = _server_context(parts, round, METHOD)
        net = ctx.frozen(parts.global_model(server))
        seed = seeds.derive(parts.spec.seed, "evaluate")
        found: dict[str, float] = {}
        with seeds.scoped(round.torch_seed()):
            for evaluator in chosen:
                found.update(evaluator(net, self.data, seed))
            if self.holdout is not None:
                for evaluator in chosen:
                    apart = evaluator(net, self.holdout, seed)
                    found.update({f"holdout_{name}": value for name, value in apart.items()})
        parts.nets(METHOD).release()
        return found

    def _on_clients(
        self,
        parts: Parts,
        executor: Executor,
        round: Round,
        server: ServerState,
        attempt: Attempt,
        recorders: Sequence[Recorder],
        result: Measured,
    ) -> None:
        alone = parts.method.model(server) is None
        chosen = {
            name: one
            for name, one in parts.evaluators.items()
            if (alone or one.where == "client") and parts.due(name, round)
        }
        asked = [info for info in executor.clients() if alone or info.tests > 0]
        if not chosen or not asked:
            return
        down = evaluation_payload(parts, server, round)
        tasks = [Task("evaluate", c, round, down, attempt=attempt) for c in _largest_first(asked)]
        found: dict[str, dict[ClientId, dict[str, float]]] = {name: {} for name in chosen}
        for reply in _answers(executor, tasks, recorders, result):
            for key, value in reply.metrics.items():
                name, _, metric = key.partition("/")
                found[name].setdefault(reply.client, {})[metric] = value
        for name, evaluator in chosen.items():
            if found[name]:
                in_order = dict(sorted(found[name].items()))
                over = evaluator.summarise if evaluator.where == "client" else _over_models
                result.metrics.update(over(in_order))

    def _federated(
        self,
        name: str,
        program: FederatedEvaluator,
        parts: Parts,
        executor: Executor,
        round: Round,
        server: ServerState,
        attempt: Attempt,
        recorders: Sequence[Recorder],
        result: Measured,
    ) -> None:
        """Drive an evaluator that is a federated program through its own rounds."""
        seed = seeds.derive(parts.spec.seed, f"program/{name}", round.index)
        clients = executor.clients()
        invited, weights = _largest_first(clients), parts.method.model(server)
        if program.has_begin():
            down = Bundle({"evaluated": weights}) if weights is not None else Bundle()
            if program.own_models or weights is None:
                down = evaluation_payload(parts, server, round)
            asked = [
                Task("evaluate", client, round, down, program=name, attempt=attempt)
                for client in invited
            ]
            invited = [reply.client for reply in _answers(executor, asked, recorders, result)]
        else:
            weights = parts.global_model(server)
        state = program.start(parts.nets(name), weights or {})
        stage = Stage(name, program.rounds, cohort="all")
        inner = round
        for step in range(program.rounds):
            inner = Round(step, program.rounds, stage.name, step, stage.rounds, len(clients), seed)
            ctx = _server_context(parts, inner, name)
            down = program.broadcast(state, inner)
            tally = Tally(inner, invited, {}, ())
            owns = {client: program.address(state, inner, client) for client in tally.asked}
            tasks = (
                Task("update", client, inner, down, own, program=name, attempt=attempt)
                for client, own in owns.items()
            )
            with seeds.scoped(inner.torch_seed()):
                replies = tally.valid_replies(executor.run(tasks), down, program.reduce)
                with suppress(NoReplies):
                    state = program.server_update(ctx, state, replies)
                for _ in replies:
                    pass
            for own in owns.values():
                tally.count_own(own)
            result.bytes_up += tally.bytes_up
            result.bytes_down += tally.bytes_down
            if not tally.valid:
                raise RunFailed(f"the evaluator {name!r} got no answer: {tally.first_problem()}")
        with seeds.scoped(inner.torch_seed()):
            result.metrics.update(program.finish(_server_context(parts, inner, name), state))
        parts.nets(name).release()


def _answers(
    executor: Executor, tasks: Sequence[Task], recorders: Sequence[Recorder], result: Measured
) -> Iterator[Reply]:
    """The replies of clients that could be evaluated; the others leave a note."""
    size = tasks[0].down.nbytes() if tasks else 0
    for done, reply in enumerate(executor.run(tasks), start=1):
        result.bytes_down += size
        if reply.error is not None:
            if reply.error.kind == "disk":
                raise CheckpointError(reply.error.reason)
            note = f"client {reply.client} was not evaluated: {reply.error.reason}"
            for record in recorders:
                record(NoteEvent(note, {"trace": reply.error.trace}))
            continue
        yield reply
        round = tasks[done - 1].round
        event = ClientEvent(round.index, round.total, done, len(tasks), "testing")
        for record in recorders:
            record(event)


def evaluation_payload(parts: Parts, server: ServerState, round: Round) -> Payload:
    """What a client needs to be evaluated: the model under test, and what `personal` reads."""
    evaluated = parts.method.model(server)
    if not parts.method.has_personal():
        return Bundle({"evaluated": parts.global_model(server)})
    down = parts.method.broadcast(server, round)
    return down if evaluated is None else down.replace(evaluated=evaluated)


def _over_models(found: Mapping[ClientId, Mapping[str, float]]) -> dict[str, float]:
    """Where clients have only models of their own: the mean and spread over these models."""
    summary: dict[str, float] = {}
    for metric in next(iter(found.values())):
        values = [metrics[metric] for metrics in found.values()]
        summary[metric] = statistics.fmean(values)
        summary[f"{metric}_std"] = statistics.pstdev(values)
    return summary


def _largest_first(clients: Sequence[ClientInfo]) -> list[ClientId]:
    return [info.id for info in sorted(clients, key=lambda info: (-info.examples, info.id))]


def _server_context(parts: Parts, round: Round, program: str) -> ServerContext:
    return ServerContext(
        round=round,
        objective=parts.objective,
        local=parts.local,
        nets=parts.nets(program),
        rules=parts.program(program).reduce,
        optimizer=ServerSettings(),
        spool=parts.spool(program),
    )
