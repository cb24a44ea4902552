"""The loop over the rounds of a run.

The steps of a round carry the numbers of the design page:

    1 stage   2 invite   3 drop   4-9 `engine.play`   10 evaluate   11 record   12 commit
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.core import files
from coterie.core.bundle import ServerState, Tensors
from coterie.core.errors import CheckpointError, RunFailed
from coterie.core.formatting import counted
from coterie.core.settings import Checkpoint, Cohort
from coterie.core.task import METHOD, Attempt, ClientId, Round
from coterie.engine.best import Best, count_stale, find_best
from coterie.engine.checkpoints import CheckpointStore, Origin, Position
from coterie.engine.cohort import (
    FEW_CLIENTS,
    Invited,
    invite,
    keeps_confusion,
    split_unseen,
)
from coterie.engine.evaluation import Evaluation, Measured, evaluation_payload
from coterie.engine.play import Played, Player
from coterie.engine.privacy import EPSILON, Privacy
from coterie.engine.record import MetricsFile, RoundEvent, StartEvent, reached, recall_by_class
from coterie.engine.replies import TRAINED, Replies, combine_digests
from coterie.kit.stages import Stage, plan_rounds

_DIVERGED_ROUNDS = 3  # in a row with no finite client: the run ends


@dataclass(frozen=True)
class Plan:
    """The settings of a loop, apart from what its player has."""

    cohort: Cohort
    checkpoint: Checkpoint
    evaluation: Evaluation
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    data: str = ""  # a description, for the user
    baseline: str = ""  # the metric before training, in words
    remote: bool = False  # the states of clients are on other machines, and are checked there
    privacy: Privacy | None = None  # None: means of the clients' weights as they are

    def checkpoints(self) -> CheckpointStore:
        """Open the store of finished rounds."""
        return CheckpointStore(self.folder, self.checkpoint.keep, not self.remote)

    def metrics(self) -> MetricsFile:
        """Open the file that has one line per round."""
        return MetricsFile(self.folder / "metrics.jsonl")


@dataclass(frozen=True)
class Standing:
    """All that one round passes on to the next."""

    server: ServerState
    position: Position
    history: tuple[RoundEvent, ...]
    best_weights: Tensors | None = None  # of the best round, until a commit writes them


class Loop:
    """Runs the rounds of a run, from its first or from a checkpoint, to the end."""

    def __init__(self, plan: Plan, player: Player, attempt: int) -> None:
        self.plan, self.player = plan, player
        self.parts, self.recorders = player.parts, player.recorders
        self.seed = self.parts.spec.seed
        everyone = player.executor.clients()
        trained, unseen = split_unseen(everyone, self.parts.spec.unseen)
        self.clients, self.unseen = ({info.id: info for info in part} for part in (trained, unseen))
        self.rounds = plan_rounds(self.parts.stages(METHOD), len(self.clients), self.seed)
        planned = len(self.rounds)
        self._allowed = plan.privacy.count_rounds(planned) if plan.privacy else planned
        self.metrics, self.store = plan.metrics(), plan.checkpoints()
        self._attempt = Attempt(attempt)
        self._warned = False

    def run(self, standing: Standing) -> Standing:
        """Play the remaining rounds; on an interrupt commit those that are finished."""
        standing = self._check_best(standing)
        first = standing.position.round + 1
        self._attempt = replace(self._attempt, first=first)
        start = StartEvent(
            self.plan.folder,
            len(self.clients),
            first,
            len(self.rounds),
            self.plan.evaluation.settings.metric,
            self.plan.data,
            self.plan.baseline,
        )
        self.recorders.emit(start)
        try:
            for stage, round in self.rounds[first : self._allowed]:  # 1
                if standing.position.finished:
                    break
                standing = self._round(stage, round, standing)
        except (KeyboardInterrupt, RunFailed):
            # the checkpoint may exist although the interrupt came before the commit returned
            if standing.position.round > max(self.store.rounds(), default=-1):
                self._commit(standing)
            raise
        return standing

    def start(self) -> Standing:
        """Make the standing before the first round."""
        server = self.store.adopt_blobs(self.parts.start())
        position = Position(environment=self.plan.environment, origin=self.plan.origin)
        return Standing(server, position, ())

    def write_personal(self, standing: Standing, spare: Collection[str] = ()) -> None:
        """Make every client write its own model, as of the last round, to a file.

        A client that fails with a kind in `spare` stays without one, which is noted.
        """
        _, round = self.rounds[standing.position.round]
        down = evaluation_payload(self.parts, standing.server, round)
        everyone = (*self.clients, *self.unseen)
        for reply in self.player.ask("personal", everyone, down, round, self._attempt):
            if reply.error is not None:
                line = f"client {reply.client} has no personal model: {reply.error.reason}"
                if reply.error.kind not in spare:
                    raise (CheckpointError if reply.error.kind == "disk" else RunFailed)(line)
                self.recorders.note(line)

    def _round(self, stage: Stage, round: Round, before: Standing) -> Standing:
        begin = time.perf_counter()
        self.store.remove_unused_blobs(before.server)
        self._attempt = replace(self._attempt, kept=tuple(self.store.rounds()))
        stage, invited = self._invite(stage, round)  # 2 and 3
        played = self.player.round(METHOD, stage, round, before.server, invited, self._attempt)
        replies, skipped = played.replies, self._is_skipped(stage, invited, played)
        server = before.server if skipped or played.server is None else played.server
        server = self.store.adopt_blobs(server)
        files.remove_tree(self.plan.folder / "spool")
        measured = Measured()
        if self.plan.evaluation.due(round) or round.index + 1 == self._allowed:
            measured = self.plan.evaluation.measure(self.player, round, server, self._attempt)  # 10
        states = {**before.position.states, **replies.states, **self._find_lost_states(replies)}
        event = RoundEvent(
            round=round.index,
            stage=stage.name,
            cohort=list(invited.clients),
            lost=replies.lost,
            rejected=replies.rejected,
            skipped=skipped,
            metrics={**replies.metrics(), **measured.metrics},
            bytes_up=replies.bytes_up,
            bytes_down=replies.bytes_down,
            evaluation_bytes_up=measured.bytes_up,
            evaluation_bytes_down=measured.bytes_down,
            seconds=time.perf_counter() - begin,
            digest=server.digest(),
            states=combine_digests(states),
        )
        event = self._hide_clients(event)
        finished = round.last or self._is_over((*before.history, event))
        event = self._add_details(event, measured, finished)
        position = replace(
            before.position,
            round=round.index,
            finished=finished,
            skipped=before.position.skipped + 1 if skipped else 0,
            diverged=before.position.diverged + 1 if replies.all_diverged() else 0,
            states=states,
        )
        history = (*before.history[:-1], *(e.outline() for e in before.history[-1:]), event)
        standing = Standing(server, position, history, before.best_weights)
        return self._close(self._note_best(standing), replies)

    def _invite(self, stage: Stage, round: Round) -> tuple[Stage, Invited]:
        """Draw the clients of a round; in a private run the server sees their private mean only."""
        everyone, cohort = list(self.clients.values()), self.plan.cohort
        if privacy := self.plan.privacy:
            drawn = privacy.invite(everyone, stage, cohort, self.seed, round.index)
            return privacy.protect(stage), drawn
        return stage, invite(everyone, stage, cohort, self.seed, round.index)

    def _hide_clients(self, event: RoundEvent) -> RoundEvent:
        """In a private run, record epsilon instead of who took part and what clients measured."""
        if (privacy := self.plan.privacy) is None:
            return event
        for client, reason in {**event.lost, **event.rejected}.items():
            self.recorders.note(f"round {event.round + 1}, client {client}: {reason}")
        own = {k: v for k, v in event.metrics.items() if not k.startswith(TRAINED)}
        spent = {EPSILON: privacy.spent(event.round + 1)}
        return replace(event, cohort=[], lost={}, rejected={}, metrics={**own, **spent})

    def _find_lost_states(self, replies: Replies) -> dict[ClientId, tuple[int, str]]:
        """Look for states that clients saved in this round although their replies were lost."""
        round, states = replies.round.index, dict[ClientId, tuple[int, str]]()
        if self.plan.remote or not self.store.states.folder.is_dir():
            return states
        for client in replies.asked:
            known = client in replies.states
            if not known and (digest := self.store.states.find_digest(client, round)):
                states[client] = (round, digest)
        return states

    def _add_details(self, event: RoundEvent, measured: Measured, finished: bool) -> RoundEvent:
        """Add what was measured by client to the event, and to the last one that by class."""
        count = len(self.clients) + len(self.unseen)
        if measured.clients and (finished or count <= FEW_CLIENTS):
            event = replace(event, clients=measured.clients, unseen=self._tested(measured))
        if not finished or not (matrix := measured.confusion):
            return event
        names = self.plan.evaluation.class_names or range(len(matrix))
        shares = zip(names, recall_by_class(matrix), strict=True)
        recall = {str(name): share for name, share in shares if share is not None}
        small = keeps_confusion(count, len(matrix))
        by_client = measured.client_confusion if small else {}
        return replace(event, confusion=matrix, recall=recall, client_confusion=by_client)

    def _tested(self, measured: Measured) -> list[str]:
        """List the clients that never train and were evaluated."""
        return [info.name for info in self.unseen.values() if info.name in measured.clients]

    def _is_skipped(self, stage: Stage, invited: Invited, played: Played) -> bool:
        """Whether a round had too few valid replies; if the round is required, the run fails."""
        quorum = max(stage.quorum, self.plan.cohort.min_clients) if invited.clients else 0
        if self.plan.privacy:
            quorum = 0  # who answered decides nothing, and noise alone is a result too
        valid = len(played.replies.valid)
        if valid >= quorum and played.server is not None:
            return False
        if stage.required:
            round = played.replies.round.index + 1
            raise RunFailed(
                f"round {round} ({stage.name}) got {valid} of the {quorum} answers that all later "
                f"rounds need ({played.replies.first_problem()}); use --resume when clients can be "
                "reached, or start again with a lower quorum"
            )
        return True

    def _close(self, standing: Standing, replies: Replies) -> Standing:
        """Record the round; commit it if that is due, or if the run has to stop."""
        event, position = standing.history[-1], standing.position
        if not self._warned and (text := self.parts.objective.warning(event.metrics)):
            self._warned = True  # once in a run
            replies.note(text)
        self.metrics.append(event)  # 11
        self.recorders.emit(event)
        if problem := self._find_problem(position, replies):
            # a resumed run starts counting again: clients may be reachable by then
            reset = replace(position, skipped=0, diverged=0, finished=False)
            self._commit(replace(standing, position=reset))
            raise RunFailed(problem)
        # a private model leaves the server once it is committed, so that none is made twice
        every = 1 if self.plan.privacy else self.plan.checkpoint.every
        if position.finished or (every and (position.round + 1) % every == 0):
            return self._commit(standing)  # 12
        return standing

    def _find_problem(self, position: Position, replies: Replies) -> str | None:
        """Describe why the run must stop: too many rounds in a row diverged or were skipped."""
        if position.diverged >= _DIVERGED_ROUNDS:
            return (
                f"no client's training stayed finite in {position.diverged} rounds up to round "
                f"{position.round + 1} ({replies.first_problem()}); try a smaller local.lr "
                f"(now {self.parts.local.lr:g}), local.clip = 1.0, or a higher temperature"
            )
        if position.skipped >= self.plan.cohort.max_skipped and not position.finished:
            return (
                f"{position.skipped} rounds in a row were skipped up to round {position.round + 1} "
                f"({replies.first_problem()}); use --resume when clients can be reached, or change "
                "cohort.min_clients or cohort.max_skipped"
            )
        return None

    def _commit(self, standing: Standing) -> Standing:
        """Commit a round; the weights of a new best round are written first, then released."""
        size, sha256 = self.metrics.sync(len(standing.history))
        position = replace(
            standing.position,
            metrics_bytes=size,
            metrics_sha256=sha256,
            attempt=self._attempt.number,
        )
        if position.best is not None and standing.best_weights is not None:
            best = self.store.best.write(position.best, standing.best_weights)
            position = replace(position, best=best)
        self.store.commit(standing.server, position)
        return replace(standing, position=position, best_weights=None)

    def _note_best(self, standing: Standing) -> Standing:
        """Keep the weights of the last round if it is the best one so far."""
        metric, best = self.plan.evaluation.settings.metric, standing.position.best
        event = standing.history[-1]
        value = event.metrics.get(metric)
        if value is None or (best is not None and value <= best.value):
            return standing
        weights = self.parts.method.model(standing.server)
        if weights is None:
            return standing
        position = replace(standing.position, best=Best(event.round, metric, value))
        return replace(standing, position=position, best_weights=weights)

    def _check_best(self, standing: Standing) -> Standing:
        """Check the weights of the best round so far; without them, look for it from here on."""
        best, metric = standing.position.best, self.plan.evaluation.settings.metric
        if find_best(standing.history, metric) is None or standing.best_weights is not None:
            return standing
        if self.parts.method.model(standing.server) is None:
            return standing
        if best is not None and self.store.best.read(best) is not None:
            return standing
        round = standing.position.round + 1
        self.recorders.note(
            f"the weights of the best round before round {round} are missing or damaged: it is "
            f"looked for again from round {round} on"
        )
        return self._note_best(replace(standing, position=replace(standing.position, best=None)))

    def _is_over(self, history: Sequence[RoundEvent]) -> bool:
        """Whether a run ends before its last round: at its budget, its target, out of patience."""
        settings, done = self.plan.evaluation.settings, history[-1].round + 1
        if done >= self._allowed and self.plan.privacy:
            self.recorders.note(
                f"the run ends after round {done} of {len(self.rounds)}: one more would exceed "
                f"privacy.epsilon = {self.plan.privacy.settings.epsilon:g}"
            )
            return True
        target = max(settings.targets, default=None) if settings.stop_at_target else None
        if target is not None and reached(history[-1:], settings.metric, target):
            return True
        if not settings.patience:
            return False
        last, _ = self.rounds[-1]
        stale = count_stale(history, settings.metric, last.name)
        if stale < settings.patience:
            return False
        best = find_best(history, settings.metric)
        assert best is not None  # else nothing is stale
        self.recorders.note(
            f"the run ends after round {history[-1].round + 1}: {settings.metric} has not improved "
            f"in {counted(stale, 'evaluation')} (evaluate.patience) since "
            f"{best.metrics[settings.metric]:.4g} in round {best.round + 1}"
        )
        return True
