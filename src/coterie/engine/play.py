"""One round, played in one place, and questions to clients outside of rounds.

A round goes through these steps, whose numbers are those of the design page:

    4 broadcast   the stage's payload once, and what each client alone is sent
    5-7           on each client (`engine.site`): load its state, do its part, save the state
    8 replies     in cohort order, screened
    9 server      the server's part over the valid replies; its new state must be finite

The steps before and after (who is invited, evaluation, recording, commit) are the loop's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import Diverged, NoReplies, RunFailed
from coterie.core.schema import Schema
from coterie.core.settings import ServerSettings
from coterie.core.task import METHOD, Attempt, ClientId, Executor, Reply, Round, Task
from coterie.engine.cohort import Invited
from coterie.engine.record import Recorders
from coterie.engine.replies import Replies
from coterie.engine.spec import Parts
from coterie.kit.aggregate import Screen
from coterie.kit.context import ServerContext
from coterie.kit.expect import Expected
from coterie.kit.local import all_finite
from coterie.kit.stages import Stage

NOTHING = Schema()  # of an upload without groups


@dataclass(frozen=True)
class Played:
    """The outcome of a round: the server's new state, None if there is no usable one."""

    server: ServerState | None
    replies: Replies


@dataclass(frozen=True)
class Player:
    """Plays rounds of a method, or of a federated evaluator, over an executor."""

    parts: Parts
    executor: Executor
    recorders: Recorders
    optimizer: ServerSettings

    def for_evaluators(self) -> "Player":
        """Return a player for federated evaluators: silent, and without a server optimiser."""
        return Player(self.parts, self.executor, Recorders(), ServerSettings())

    def ask(
        self,
        op: Literal["evaluate", "personal"],
        clients: Iterable[ClientId],
        down: Payload,
        round: Round,
        attempt: Attempt,
        program: str = METHOD,
        expected: Schema = NOTHING,
    ) -> Iterator[Reply]:
        """Ask clients about the model after a round; replies come in the order of `clients`."""
        return self.executor.run(
            Task(op, client, round, down, None, program, attempt, expected) for client in clients
        )

    def round(
        self,
        program: str,
        stage: Stage,
        round: Round,
        server: ServerState,
        cohort: Invited,
        attempt: Attempt,
    ) -> Played:
        """Play one round from the server's state before it."""
        assert stage.broadcast and stage.address and stage.server and stage.uploads is not None
        address, replies = stage.address, Replies(round, cohort, self.recorders)

        def tasks(down: Payload, expected: Expected) -> Iterator[Task]:
            for client in replies.asked:
                own = address(server, round, client)
                replies.count_own(own)
                schema = expected.schema(samples.get(client, 0))
                yield Task("update", client, round, down, own, program, attempt, schema)

        ctx, result = self.context(program, stage, round), None
        samples = {info.id: info.examples for info in self.executor.clients()}
        with self.parts.arithmetic(), seeds.scoped(round.torch_seed()):
            down = stage.broadcast(server, round) if replies.asked else Bundle()  # 4
            # where nobody is asked there is no broadcast that uploads could look like
            expected = self.parts.expect(program, stage, down) if replies.asked else Expected()
            answers = self.executor.run(tasks(down, expected))  # 5 to 7, on the clients
            screen = Screen(expected, samples, self.parts.uploads)
            valid = replies.screen(answers, down, screen)  # 8
            try:
                result = stage.server(ctx, server, valid)  # 9
            except (NoReplies, Diverged) as error:
                replies.trouble = str(error)
                if isinstance(error, Diverged):
                    replies.note(replies.trouble)
            for _ in valid:  # even if the server's part reads no reply, every client answers
                pass
        self.parts.nets(program).release()
        replies.server_metrics.update(ctx.metrics)
        if result is not None and not is_finite(result):
            replies.note("the server's new state is not finite and was not taken")
            result = None
        return Played(result, replies)

    def rehearse(
        self, stage: Stage, round: Round, server: ServerState, clients: Iterable[ClientId]
    ) -> tuple[list[Reply], Replies]:
        """Play only the clients' part of a round; `RunFailed` if there is no valid reply."""
        valid: list[Reply] = []

        def collect(
            ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
        ) -> ServerState:
            valid.extend(replies)
            return server

        alone, cohort = replace(stage, server=collect), Invited(tuple(clients))
        played = self.round(METHOD, alone, round, server, cohort, Attempt())
        if not valid:
            raise RunFailed(played.replies.first_problem())
        return valid, played.replies

    def context(self, program: str, stage: Stage, round: Round) -> ServerContext:
        """Make the context for the server's part of a round."""
        return ServerContext(
            round=round,
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.parts.nets(program),
            rules=stage.uploads or {},
            optimizer=self.optimizer,
            folder=self.parts.spool(program),
        )


def is_finite(bundle: Bundle) -> bool:
    """Whether a bundle holds no NaN and no infinity."""
    return all_finite(tensor for group in bundle.tensors.values() for tensor in group.values())
