"""`iid`: every client gets the same number of samples, drawn at random."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge

from coterie.data.partitions import require_enough
from coterie.data.skew import Skewed

if TYPE_CHECKING:
    from coterie.data.datasets import Groups


@dataclass(frozen=True, slots=True)
class IID(Skewed):
    """`np.array_split(permutation(N), n)`: sizes differ by one at most."""

    clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 1

    def deal(
        self, labels: np.ndarray, classes: int, seed: int, groups: "Groups | None" = None
    ) -> dict[int, np.ndarray]:
        """Assign training indices to every client."""
        from coterie.core import seeds

        require_enough(len(labels), self.clients, self.min_samples)
        order = seeds.generator(seed, "partition").permutation(len(labels))
        return dict(enumerate(np.array_split(order, self.clients)))
