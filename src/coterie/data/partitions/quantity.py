"""`quantity`: clients of very different sizes, each with a random mix of the classes."""

from dataclasses import dataclass

import numpy as np

from coterie.data.datasets import Groups
from coterie.data.partitions._draws import DirichletRule, draw_enough
from coterie.data.skew import Labels, Shares


@dataclass(frozen=True, slots=True)
class Quantity(DirichletRule):
    """Quantity skew as in NIID-Bench: p ~ Dir(beta 1_n), client j has a share p_j of all samples.

    A random order of the samples is cut at floor(cumsum(p) N); p is drawn again until every client
    has `min_samples`.
    """

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client."""
        samples = len(labels)

        def draw(generator: np.random.Generator, beta: float) -> np.ndarray:
            share = generator.dirichlet(np.full(self.clients, beta))
            # a tiny beta can give NaN; the attempt then fails as it should
            cuts = np.floor(np.nan_to_num(np.cumsum(share)) * samples).astype(np.int64)
            cuts[-1] = samples
            return np.diff(cuts, prepend=0)[None]

        counts, generator = draw_enough(self, draw, samples, 1, seed)
        order = generator.permutation(samples)
        return dict(enumerate(np.split(order, np.cumsum(counts[0])[:-1])))
