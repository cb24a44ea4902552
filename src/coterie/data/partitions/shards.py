"""`shards`: samples sorted by label, cut into equal shards, a few of them dealt to each client."""

from dataclasses import dataclass

import numpy as np

from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.fields import PositiveCount
from coterie.data.datasets import Groups
from coterie.data.partitions import require_enough
from coterie.data.skew import Labels, Shares, Skewed


@dataclass(frozen=True, slots=True)
class Shards(Skewed):
    """The pathological partition of McMahan et al. (2017), section 3.

    Sort by label, cut into `clients` x `shards_per_client` shards whose sizes differ by one at
    most, deal the shards at random: most clients then have samples of two classes.
    """

    labels = True

    clients: PositiveCount = 10
    shards_per_client: PositiveCount = 2
    min_samples: PositiveCount = 1

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client."""
        require_enough(len(labels), self.clients, self.min_samples)
        count = self.clients * self.shards_per_client
        if count > len(labels):
            raise ConfigError(
                f"partition.clients={self.clients} with partition.shards_per_client="
                f"{self.shards_per_client} makes {count} shards of {len(labels)} training samples; "
                f"use partition.shards_per_client={len(labels) // self.clients} or fewer"
            )
        shards = np.array_split(np.argsort(labels, kind="stable"), count)
        order = seeds.generator(seed, "partition").permutation(count)
        return {
            client: np.concatenate([shards[shard] for shard in own])
            for client, own in enumerate(order.reshape(self.clients, -1))
        }
