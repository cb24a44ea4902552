"""The loop: the only place that knows the order of a round.

    stage - invite - drop - broadcast -> load state - client_update - save state -> order
          -> server_update - evaluate - record - commit

What a client does (the middle part) is `engine.site`; where it does it is the executor.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import Diverged, NoReplies, RunFailed
from coterie.core.settings import Checkpoint, Cohort, ServerSettings
from coterie.core.task import METHOD, Attempt, Executor, Round, Stage, Task
from coterie.engine import cohort
from coterie.engine.checkpoints import CheckpointStore, Position
from coterie.engine.evaluation import Evaluation, Measured, evaluation_payload
from coterie.engine.record import MetricsFile, Recorder, RoundEvent, StartEvent, reached
from coterie.engine.replies import Tally, combined
from coterie.engine.spec import Parts
from coterie.kit.context import ServerContext
from coterie.kit.local import all_finite

_DIVERGED_ROUNDS = 3  # in a row with no finite client: the run ends


@dataclass(frozen=True)
class Plan:
    """What the loop is asked to do, apart from the parts that sites share with it."""

    rounds: int
    cohort: Cohort
    server: ServerSettings
    checkpoint: Checkpoint
    evaluation: Evaluation
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def checkpoints(self) -> CheckpointStore:
        """Where finished rounds are kept."""
        return CheckpointStore(self.folder, self.checkpoint.keep)

    def metrics(self) -> MetricsFile:
        """Where rounds are recorded."""
        return MetricsFile(self.folder / "metrics.jsonl")


@dataclass(frozen=True)
class Standing:
    """All that one round hands to the next."""

    server: ServerState
    position: Position
    history: tuple[RoundEvent, ...]


def rounds_of(stages: Sequence[Stage], clients: int, seed: int) -> list[tuple[Stage, Round]]:
    """Every round of the run with its stage."""
    total = sum(stage.rounds for stage in stages)
    found: list[tuple[Stage, Round]] = []
    for stage in stages:
        for step in range(stage.rounds):
            place = Round(len(found), total, stage.name, step, stage.rounds, clients, seed)
            found.append((stage, place))
    return found


class Loop:
    """Drives one run from where it stands to its end."""

    def __init__(
        self,
        plan: Plan,
        parts: Parts,
        executor: Executor,
        attempt: int,
        recorders: Sequence[Recorder] = (),
    ) -> None:
        self.plan, self.parts, self.executor, self.recorders = plan, parts, executor, recorders
        self.method, self.seed = parts.method, parts.spec.seed
        self.clients = {info.id: info for info in executor.clients()}
        self.metrics, self.store = plan.metrics(), plan.checkpoints()
        self._attempt = Attempt(attempt)
        self._committed = -1
        self._warned = False

    def run(self, standing: Standing) -> Standing:
        """Play the rounds that are left; on an interrupt keep what was finished."""
        first = standing.position.round + 1
        self._attempt = replace(self._attempt, first=first)
        self._committed = standing.position.round
        stages = self.method.stages(self.plan.rounds)
        rounds = rounds_of(stages, len(self.clients), self.seed)
        for record in self.recorders:
            record(StartEvent(self.plan.folder, len(self.clients), first, len(rounds)))
        try:
            for stage, round in rounds[first:]:
                if standing.position.finished:
                    break
                standing = self._round(stage, round, standing)
        except (KeyboardInterrupt, RunFailed):
            # the directory may be there although the interrupt came before the commit returned
            if standing.position.round > max(self._committed, *self.store.rounds(), -1):
                self._commit(standing)
            raise
        return standing

    def start(self) -> Standing:
        """The standing before the first round."""
        with seeds.scoped(seeds.torch_seed(self.seed, "start", 0)):
            server = self.store.adopt(self.method.init(self.parts.nets(METHOD)))
        return Standing(server, Position(environment=self.plan.environment), ())

    def write_personal(self, standing: Standing) -> None:
        """Let every client leave its own model, as of the last round, in a file of its site."""
        stages = self.method.stages(self.plan.rounds)
        _, round = rounds_of(stages, len(self.clients), self.seed)[standing.position.round]
        down = evaluation_payload(self.parts, standing.server, round)
        tasks = (
            Task("personal", client, round, down, attempt=self._attempt) for client in self.clients
        )
        for reply in self.executor.run(tasks):
            if reply.error is not None:
                raise RunFailed(
                    f"client {reply.client} has no personal model: {reply.error.reason}"
                )

    def _round(self, stage: Stage, round: Round, before: Standing) -> Standing:
        begin = time.perf_counter()
        self.store.tidy(before.server)
        self._attempt = replace(self._attempt, kept=tuple(self.store.rounds()))
        everyone = list(self.clients.values())
        invited = cohort.sample(everyone, stage, self.plan.cohort.fraction, self.seed, round.index)
        lost = cohort.dropouts(invited, stage, self.plan.cohort, self.seed, round.index)

        tally = Tally(round, invited, lost, self.recorders)
        server = self._play(stage, round, before.server, tally)
        quorum = max(stage.quorum, self.plan.cohort.min_clients) if invited else 0
        skipped = len(tally.valid) < quorum or server is None
        if skipped and stage.required:
            raise RunFailed(
                f"round {round.index + 1} ({stage.name}) got {len(tally.valid)} of the "
                f"{quorum} answers that all later rounds need ({tally.first_problem()}); use "
                "--resume when clients can be reached, or start again with a lower quorum"
            )
        if skipped or server is None:
            server = before.server
        server = self.store.adopt(server)
        shutil.rmtree(self.plan.folder / "spool", ignore_errors=True)

        states = {**before.position.states, **tally.states}
        measured = Measured()
        if self.plan.evaluation.due(round):
            measured = self.plan.evaluation.measure(
                self.parts, self.executor, round, server, self._attempt, self.recorders
            )
        event = RoundEvent(
            round=round.index,
            stage=stage.name,
            cohort=invited,
            lost=tally.lost,
            rejected=tally.rejected,
            skipped=skipped,
            metrics={**tally.metrics(), **measured.metrics},
            bytes_up=tally.bytes_up,
            bytes_down=tally.bytes_down,
            evaluation_bytes_up=measured.bytes_up,
            evaluation_bytes_down=measured.bytes_down,
            seconds=time.perf_counter() - begin,
            digest=server.digest(),
            states=combined(states),
        )
        self._warn(event, tally)
        position = replace(
            before.position,
            round=round.index,
            finished=round.last or self._at_target(event),
            skipped=before.position.skipped + 1 if skipped else 0,
            diverged=before.position.diverged + 1 if tally.all_diverged() else 0,
            states=states,
        )
        return self._close(Standing(server, position, (*before.history, event)), tally)

    def _play(
        self, stage: Stage, round: Round, server: ServerState, tally: Tally
    ) -> ServerState | None:
        """Broadcast, collect, aggregate; None where nothing usable came of it."""
        ctx = ServerContext(
            round=round,
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.parts.nets(METHOD),
            rules=self.method.uploads(stage.name),
            optimizer=self.plan.server,
            spool=self.parts.spool(METHOD),
        )
        with seeds.scoped(round.torch_seed()):
            down = self.method.broadcast(server, round) if tally.asked else Bundle()
            tasks = self._tasks(round, server, down, tally)
            rules = self.method.uploads(stage.name)
            replies = tally.valid_replies(self.executor.run(tasks), down, rules)
            try:
                result: ServerState | None = self.method.server_update(ctx, server, replies)
            except (NoReplies, Diverged) as error:
                result, tally.trouble = None, str(error)
                if isinstance(error, Diverged):
                    tally.note(tally.trouble)
            for _ in replies:  # a method that looks at no reply still lets everyone answer
                pass
        self.parts.nets(METHOD).release()
        tally.server_metrics.update(ctx.metrics)
        if result is not None and not all_finite(
            t for group in result.tensors.values() for t in group.values()
        ):
            tally.note("the server's new state is not finite and was not taken")
            return None
        return result

    def _warn(self, event: RoundEvent, tally: Tally) -> None:
        """Pass on what the objective has to say of a round, once."""
        text = None if self._warned else self.parts.objective.warning(event.metrics)
        if text is not None:
            self._warned = True
            tally.note(text)

    def _tasks(
        self, round: Round, server: ServerState, down: Payload, tally: Tally
    ) -> Iterator[Task]:
        for client in tally.asked:
            own = self.method.address(server, round, client)
            tally.count_own(own)
            yield Task("update", client, round, down, own, attempt=self._attempt)

    def _close(self, standing: Standing, tally: Tally) -> Standing:
        """Record the round; commit it if that is due, or if the run cannot go on."""
        event, position = standing.history[-1], standing.position
        self.metrics.append(event)
        for record in self.recorders:
            record(event)
        if problem := self._hopeless(position, tally):
            # resuming gives a run that was stopped by others' failures a new chance
            patient = replace(position, skipped=0, diverged=0, finished=False)
            self._commit(replace(standing, position=patient))
            raise RunFailed(problem)
        every = self.plan.checkpoint.every
        if position.finished or (every and (position.round + 1) % every == 0):
            self._commit(standing)
        return standing

    def _hopeless(self, position: Position, tally: Tally) -> str | None:
        if position.diverged >= _DIVERGED_ROUNDS:
            return (
                f"no client's training stayed finite in {position.diverged} rounds up to round "
                f"{position.round + 1} ({tally.first_problem()}); try a smaller local.lr "
                f"(now {self.parts.local.lr:g}), local.clip = 1.0, or a higher temperature"
            )
        if position.skipped >= self.plan.cohort.max_skipped and not position.finished:
            return (
                f"{position.skipped} rounds in a row were skipped up to round {position.round + 1} "
                f"({tally.first_problem()}); use --resume when clients can be reached, or change "
                "cohort.min_clients or cohort.max_skipped"
            )
        return None

    def _commit(self, standing: Standing) -> None:
        size, sha256 = self.metrics.sync(len(standing.history))
        position = replace(standing.position, metrics_bytes=size, metrics_sha256=sha256)
        self.store.commit(standing.server, position)
        self._committed = position.round

    def _at_target(self, event: RoundEvent) -> bool:
        settings = self.plan.evaluation.settings
        if not (settings.stop_at_target and settings.targets):
            return False
        return reached([event], settings.metric, max(settings.targets)) is not None
