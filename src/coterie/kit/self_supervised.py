"""What self-supervised objectives share beside losses: checks, and the signs of a collapse."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.errors import ConfigError

COLLAPSED = 0.05  # a feature_std below this is a warning
_PAIRS = 64  # samples of a batch among which distances are looked at


def require_projection(name: str, projection: int) -> int:
    """The width of z, which an objective on two views cannot do without."""
    if projection == 0:
        raise ConfigError(f"objective.name = {name!r} needs a projector: net.projection above 0")
    return projection


def warn_of_collapse(objective: object, metrics: Mapping[str, float]) -> str | None:
    """Warn if the projections in training all point one way; fills an objective's `warning`."""
    trained = (
        ("train", "the clients'", "a smaller local.lr or a larger local.batch_size"),
        ("server", "the server's", "a smaller learning rate or larger batches on the server"),
    )
    for where, who, remedy in trained:
        spread = metrics.get(f"{where}_feature_std", 1.0)
        if spread < COLLAPSED:
            return (
                f"{who} projections have collapsed: {where}_feature_std is {spread:.3f}, below "
                f"{COLLAPSED} (1: spread out); try {remedy}"
            )
    return None


@torch.no_grad()
def geometry(z1: Tensor, z2: Tensor) -> Mapping[str, Tensor]:
    """How the representations of two views lie on the sphere, u = z1 / |z1|, v = z2 / |z2|.

    `feature_std`: sqrt(d) times the mean deviation of an entry of u; near 1 when directions are
    spread out, 0 when all are one. `alignment`: the mean of |u - v|^2. `uniformity`: the logarithm
    of the mean of e^{-2 |u_i - u_j|^2} over pairs (Wang and Isola 2020).
    """
    u, v = F.normalize(z1, dim=-1), F.normalize(z2, dim=-1)
    spread = u.std(dim=0, unbiased=False).mean() * float(u.shape[1] ** 0.5)
    distances = torch.pdist(u[:_PAIRS]).square()
    return {
        "feature_std": spread,
        "alignment": (u - v).square().sum(dim=1).mean(),
        "uniformity": torch.exp(-2.0 * distances).mean().log(),
    }
