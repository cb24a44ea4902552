"""`by-group`: the clients are the groups that the data set itself has, such as its writers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge

from coterie.core.errors import ConfigError
from coterie.data.skew import Skewed

if TYPE_CHECKING:
    from coterie.data.datasets import Groups


@dataclass(frozen=True, slots=True)
class ByGroup(Skewed):
    """The natural partition: one client per group of the data set, named as the group is.

    A group with fewer training samples than `min_samples` is left out, its samples go to nobody.
    Test samples are the group's own where they are grouped too, else dealt by class shares.
    """

    min_samples: Annotated[int, Ge(1)] = 2

    def deal(
        self, labels: np.ndarray, classes: int, seed: int, groups: "Groups | None" = None
    ) -> dict[int, np.ndarray]:
        """The training indices of every client, in the order of the data set."""
        kept = self.held_groups(groups)
        assert groups is not None  # held_groups has refused None
        order = np.argsort(groups.train, kind="stable")
        ends = np.cumsum(np.bincount(groups.train, minlength=len(groups.names)))
        shares = np.split(order, ends[:-1])
        return {client: shares[group] for client, group in enumerate(kept.tolist())}

    def held_groups(self, groups: "Groups | None") -> np.ndarray:
        """The groups that are large enough, in their order."""
        if groups is None:
            raise ConfigError(
                "partition.kind=by-group needs a data set with groups and this one has none; use "
                "another partition.kind, or another data.name"
            )
        sizes = np.bincount(groups.train, minlength=len(groups.names))
        kept = np.flatnonzero(sizes >= self.min_samples)
        if not kept.size:
            raise ConfigError(
                f"partition.min_samples={self.min_samples} leaves out all {len(sizes)} groups; the "
                f"largest has {sizes.max()} samples: use partition.min_samples={sizes.max()} or "
                "fewer"
            )
        return kept
