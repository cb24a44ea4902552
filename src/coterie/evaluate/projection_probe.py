"""A linear classifier on the global model's frozen projections z, trained on all labels.

As `linear_probe`, behind the projector instead of before it: where the MFCL paper's text puts its
linear evaluation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from coterie.evaluate.shared.head import probe
from coterie.kit.context import Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen


@final
@dataclass(frozen=True)
class ProjectionProbe(Evaluator):
    """The global model's z with every label of the training set."""

    where = "server"
    needs = ("projector",)

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """`projection_probe` and `projection_probe_labels`."""
        return probe(net, data, seed, "projection_probe", layer="z")
