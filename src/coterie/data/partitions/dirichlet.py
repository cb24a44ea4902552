"""`dirichlet`: label skew, every class divided by a Dirichlet draw; MOON's balance rule or none."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from coterie.data.datasets import Groups
from coterie.data.partitions._draws import DirichletRule, deal_counts, draw_enough
from coterie.data.skew import Labels, Shares

_REDRAWS = 100


@dataclass(frozen=True, slots=True)
class Dirichlet(DirichletRule):
    """The partition of MOON (Li, He, Song 2021) and FedProc, as their public code deals it.

    For every class in order: p ~ Dir(beta 1_n) over the n clients; p_j = 0 where client j has its
    fair share N/n already; p = p / sum(p); the shuffled class is cut at floor(cumsum(p) |class|).
    The whole is drawn again until every client has `min_samples`, then each share is shuffled.
    `balance = False` leaves p_j = 0 out: a plain draw for every class, as in SSFL (He et al. 2021).

    A cumulative sum that ends just below 1 can leave a full client one stray sample of a class;
    this is kept because the authors' partitions have it. Shares are not of equal size.
    """

    balance: bool = True  # a client that has its fair share gets nothing of later classes

    labels = True

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client."""
        totals = np.bincount(labels, minlength=classes)
        draw = partial(_draw_counts, totals, self.clients, self.balance)
        return deal_counts(labels, *draw_enough(self, draw, len(labels), classes, seed))


def _draw_counts(
    totals: np.ndarray, clients: int, balance: bool, generator: np.random.Generator, beta: float
) -> np.ndarray | None:
    """Draw the number of samples by class and client; None if no client can take a class.

    The counts alone decide whether an attempt succeeds, so the shuffles are drawn later.
    """
    counts = np.zeros((len(totals), clients), np.int64)
    sizes = np.zeros(clients, np.int64)
    concentration = np.full(clients, beta)
    fair = totals.sum() / clients
    for k in np.flatnonzero(totals):
        wanting = sizes < fair if balance else 1.0
        for _ in range(_REDRAWS):
            share = generator.dirichlet(concentration) * wanting
            weight = share.sum()
            if weight > 0:
                break
        else:
            return None
        cuts = np.floor(np.cumsum(share / weight) * totals[k]).astype(np.int64)
        cuts[-1] = totals[k]
        counts[k] = np.diff(cuts, prepend=0)
        sizes += counts[k]
    return counts
