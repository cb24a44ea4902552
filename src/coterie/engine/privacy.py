"""Rounds with differential privacy for clients: who is drawn, what the server sees, what it costs.

The server's part of a stage gets one reply, the private mean of all replies. So whatever a method
computes from it costs no more. Clients and noise are drawn from the entropy of the operating
system, as a draw that follows from the run's seed is no secret; a round that is played again after
a kill draws anew, and the model of the first try was never sent.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coterie.core.bundle import Bundle, ServerState
from coterie.core.settings import Cohort, PrivacySettings
from coterie.core.task import ClientInfo, Reply
from coterie.engine.cohort import Invited, draw_dropouts, largest_first
from coterie.kit.accounting import count_rounds, epsilon
from coterie.kit.context import ServerContext
from coterie.kit.private_mean import Entropy, draw_uniform, private_mean
from coterie.kit.stages import Stage

EPSILON = "epsilon"  # the metric of a round
MODEL = "model"  # the only group that clients may send
_NOBODY = -1  # the client of the one reply that a server's part gets


@dataclass(frozen=True)
class Privacy:
    """The terms of a private run: its settings, the rate of clients, and how many there are."""

    settings: PrivacySettings
    rate: float  # the probability that a client takes part in a round
    clients: int
    entropy: Entropy = os.urandom

    @property
    def expected(self) -> float:
        """The number of clients that a round is expected to have."""
        return self.rate * self.clients

    def invite(
        self, clients: Sequence[ClientInfo], stage: Stage, cohort: Cohort, seed: int, round: int
    ) -> Invited:
        """Draw every client by itself (Poisson sampling); there may be none."""
        draws = draw_uniform(len(clients), self.entropy).tolist()
        joined = [c for c, draw in zip(clients, draws, strict=True) if draw < self.rate]
        ids = largest_first(joined)
        return Invited(tuple(ids), draw_dropouts(ids, stage, cohort, seed, round))

    def protect(self, stage: Stage) -> Stage:
        """Let the server's part of a stage see the private mean only."""
        broadcast, inner = stage.broadcast, stage.server
        assert broadcast and inner  # the stages of a run have every function

        def server(ctx: ServerContext, state: ServerState, replies: Iterator[Reply]) -> ServerState:
            mean = private_mean(
                broadcast(state, ctx.round)[MODEL],
                (reply.up[MODEL] for reply in replies),
                clip=self.settings.clip,
                noise=self.settings.noise,
                expected=self.expected,
                entropy=self.entropy,
            )
            return inner(ctx, state, iter([Reply(_NOBODY, Bundle({MODEL: mean}), examples=1)]))

        return replace(stage, server=server)

    def spent(self, rounds: int) -> float:
        """Compute epsilon after a number of rounds."""
        terms = self.settings
        return epsilon(terms.noise, self.rate, rounds, terms.delta, terms.accountant)

    def count_rounds(self, planned: int) -> int:
        """Count the planned rounds that the budget allows; all of them without a budget."""
        terms = self.settings
        if not terms.epsilon:
            return planned
        return count_rounds(
            terms.noise, self.rate, terms.delta, terms.epsilon, planned, terms.accountant
        )
