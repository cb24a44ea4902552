"""`by-group`: the clients are the groups of the data set itself, such as its writers."""

from dataclasses import dataclass

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.fields import PositiveCount
from coterie.data.datasets import Groups
from coterie.data.skew import Labels, Shares, Skewed


@dataclass(frozen=True, slots=True)
class ByGroup(Skewed):
    """The natural partition: one client per group of the data set, with the group's name.

    A group with fewer training samples than `min_samples` is left out, with its samples. Test
    samples are the group's own if they have groups too, else they are dealt by class shares.
    """

    min_samples: PositiveCount = 2

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign the training indices of every group, in the order of the data set."""
        kept = self.select_groups(groups)
        assert groups is not None  # select_groups has rejected None
        order = np.argsort(groups.train, kind="stable")
        ends = np.cumsum(np.bincount(groups.train, minlength=len(groups.names)))
        shares = np.split(order, ends[:-1])
        return {client: shares[group] for client, group in enumerate(kept.tolist())}

    def select_groups(self, groups: "Groups | None") -> np.ndarray:
        """Return the groups that are large enough, in their order."""
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
