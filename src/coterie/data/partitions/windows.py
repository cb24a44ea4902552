"""`windows`: MFCL's scenarios 1 to 110, where each client has a window of consecutive classes."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.fields import PositiveCount
from coterie.data.datasets import Groups
from coterie.data.skew import Labels, Shares, Skewed

_SMALL, _LARGE = 10, 100  # as many clients as classes: the two data sets of the scenarios


@dataclass(frozen=True, slots=True)
class Windows(Skewed):
    """The class windows of MFCL's Tables 1 (10 clients and classes) and 4 (100 of both).

    Scenario s gives every client w = s classes up to 10 and w = s - 10 above. Client m (from 0)
    has the classes start(m), ..., start(m) + w - 1 modulo n, with start(m) = m w (`plain`).
    The printed tables shift the second cycle of clients by one where gcd(w, n) = 2 and w < n/2:
    start(m) = m w + floor(m gcd(w, n) / n) (`table`). By both, w clients hold every class.

    Each class is shuffled and cut into w chunks, one per holder in the clients' order: of
    floor(|class| / w) samples with `equal`, else with the remainder dealt to the first holders.
    """

    labels = True

    scenario: Annotated[int, Ge(1), Le(_SMALL + _LARGE)] = 2
    rule: Literal["table", "plain"] = "table"
    equal: bool = True
    min_samples: PositiveCount = 1

    def windows(self) -> list[list[int]]:
        """List the classes of every client, numbered from 0, in the order of its window."""
        n, w = self._extent()
        common = math.gcd(w, n)
        shifted = self.rule == "table" and common == 2 and 2 * w < n
        starts = [m * w + shifted * (m * common // n) for m in range(n)]
        return [[(start + j) % n for j in range(w)] for start in starts]

    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client, class by class in the order of its window."""
        n, w = self._extent()
        if classes != n:
            fits = {_SMALL: "1 to 10", _LARGE: "11 to 110"}.get(classes)
            remedy = f"use partition.scenario={fits}" if fits else "use another partition.kind"
            raise ConfigError(
                f"partition.scenario={self.scenario} is for {n} classes and the data set has "
                f"{classes}; {remedy}"
            )
        generator = seeds.generator(seed, "partition")
        chunks = []
        for k in range(n):
            members = generator.permutation(np.flatnonzero(labels == k))
            if self.equal:
                if len(members) < w:
                    raise ConfigError(
                        f"partition.scenario={self.scenario} deals class {k} to {w} clients and it "
                        f"has {len(members)} samples; use partition.equal=false or a smaller "
                        "partition.scenario"
                    )
                members = members[: len(members) // w * w]
            chunks.append(iter(np.array_split(members, w)))
        return {
            client: np.concatenate([next(chunks[k]) for k in window])
            for client, window in enumerate(self.windows())
        }

    def _extent(self) -> tuple[int, int]:
        """Return the number of clients (and of classes), and the number of classes per client."""
        if self.scenario <= _SMALL:
            return _SMALL, self.scenario
        return _LARGE, self.scenario - _SMALL
