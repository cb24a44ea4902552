"""How the global model's representations are spread; warns when they collapse.

On at most 2,048 test samples, drawn by the seed of the run, with u = h / |h| of d dimensions (z for
`layer = "z"`):

    feature_std     sqrt(d) * mean over dimensions of the standard deviation of u
    effective_rank  exp(-sum p_i log p_i), p_i = the singular values of u over their sum
    uniformity      log mean exp(-2 |u - v|^2) over all pairs

feature_std (Chen and He, CVPR 2021) is 1 where h points everywhere and 0 where it is always the
same; below 0.05 the user is warned. effective_rank (Roy and Vetterli, 2007) lies between 1 and d.
uniformity (Wang and Isola, ICML 2020) is 0 where all are the same, and the lower the more spread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.evaluate.shared.features import Layer, LayerEvaluator
from coterie.kit import Frozen, Shard, seeds, self_supervised

NAME = "geometry"
MEASURES = ("feature_std", "effective_rank", "uniformity")
MOST = 2048  # samples
_ROWS = 256  # samples at once; MOST is a multiple, so that no batch of one is left over


def sample(net: Frozen, data: Shard, seed: int, layer: Layer = "h") -> Tensor:
    """Compute h (or z) of at most `MOST` test samples, drawn by the seed."""
    encode = net.encode if layer == "h" else net.project
    count = sum(len(batch) for batch in data.sweep(test=True))
    if count < 2:
        return torch.empty(0, 0)
    if count <= MOST:
        return torch.cat([encode(batch.x) for batch in data.sweep(test=True)])
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.from_numpy(seeds.generator(seed, "geometry").permutation(count)[:MOST])] = True
    batches = data.sweep(test=True)
    images = torch.cat([batch.x[chosen[batch.index].to(batch.x.device)] for batch in batches])
    return torch.cat([encode(rows) for rows in torch.split(images, _ROWS)])


def measure(h: Tensor) -> dict[str, float]:
    """Compute the three measures of a set of representations."""
    u = F.normalize(h.double(), dim=1)
    values = torch.linalg.svdvals(u)
    shares = values / values.sum().clamp(min=1e-12)
    spread = u.std(dim=0, correction=0).mean() * u.shape[1] ** 0.5
    rank = torch.special.entr(shares).sum().exp()
    uniformity = F.pdist(u).pow(2).mul(-2).exp().mean().log()
    return dict(zip(MEASURES, map(float, (spread, rank, uniformity)), strict=True))


@final
@dataclass(frozen=True)
class Geometry(LayerEvaluator):
    """The global model on a sample of the test set."""

    layer: Layer = "h"
    key: str = NAME

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        """Measure the three; their names get the key as prefix if it is not the default."""
        h = sample(net, data, seed, self.layer)
        measures = measure(h) if len(h) > 1 else {}
        return {f"{self._prefix}{name}": value for name, value in measures.items()}

    def warning(self, metrics: Mapping[str, float]) -> str | None:
        """Warn if all samples look the same to the model."""
        name = f"{self._prefix}feature_std"
        spread = metrics.get(name, 1.0)
        if spread >= self_supervised.COLLAPSED:
            return None
        return (
            f"the representations have collapsed: {name} is {spread:.3f}, below "
            f"{self_supervised.COLLAPSED} (1: spread out); try a smaller local.lr or another "
            "objective"
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The three measures."""
        return tuple(f"{self._prefix}{name}" for name in MEASURES)

    @property
    def headline(self) -> str:
        """How far the representations are from a collapse."""
        return f"{self._prefix}feature_std"

    @property
    def _prefix(self) -> str:
        return "" if self.key == NAME else f"{self.key}_"
