"""`iid`: every client gets the same number of samples, drawn at random."""

from dataclasses import dataclass

import numpy as np

from coterie.core import seeds
from coterie.core.fields import PositiveCount
from coterie.data.datasets import Groups
from coterie.data.partitions import require_enough
from coterie.data.skew import Labels, Shares, Skewed


@dataclass(frozen=True, slots=True)
class IID(Skewed):
    """`np.array_split(permutation(N), n)`: sizes differ by one at most."""

    clients: PositiveCount = 10
    min_samples: PositiveCount = 1

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client."""
        require_enough(len(labels), self.clients, self.min_samples)
        order = seeds.generator(seed, "partition").permutation(len(labels))
        return dict(enumerate(np.array_split(order, self.clients)))
