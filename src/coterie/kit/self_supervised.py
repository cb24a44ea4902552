"""Self-supervised losses on two views of the same samples, and what tells a collapse.

All are free functions of what a network gives for view 1 and view 2; they work for any batch of two
or more. Codes and targets are constants: gradients flow through the other side only.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.errors import ConfigError

COLLAPSED = 0.05  # a feature_std below this is a warning
_PAIRS = 64  # samples of a batch among which distances are looked at
_FAR = 200.0  # logarithms of scores so far apart could leave float64 when they are scaled


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """D(p, z) = -cos(p, z), the mean over the batch; z is a constant."""
    return -F.cosine_similarity(p, z.detach(), dim=-1).mean()


def symmetric_distance(p1: Tensor, p2: Tensor, z1: Tensor, z2: Tensor) -> Tensor:
    """D(p1, z2) / 2 + D(p2, z1) / 2: SimSiam's loss, and BYOL's with z of the target network."""
    return 0.5 * negative_cosine(p1, z2) + 0.5 * negative_cosine(p2, z1)


def nt_xent(z1: Tensor, z2: Tensor, tau: float) -> Tensor:
    """SimCLR's loss over the 2B views of a batch of B samples.

    -log( e^{cos(z_i, z_j)/tau} / sum_{k != i} e^{cos(z_i, z_k)/tau} ),   j the other view of i
    """
    size = len(z1)
    z = F.normalize(torch.cat([z1, z2]), dim=-1)
    scores = (z @ z.T) / tau
    itself = torch.eye(2 * size, dtype=torch.bool, device=z.device)
    scores = scores.masked_fill(itself, -torch.inf)
    partners = torch.arange(2 * size, device=z.device).roll(size)
    return F.cross_entropy(scores, partners)


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes of B samples over K prototypes that use all prototypes alike.

    The matrix exp(scores / epsilon) is scaled to columns of sum B / K and rows of sum 1, in turns;
    the rows last. Scores that are too far apart for that are scaled in logarithms, so that none is
    too large.
    """
    size, prototypes = scores.shape
    logs = (scores / epsilon).to(torch.float64)
    logs = logs - logs.max()
    if float(logs.min()) < -_FAR:
        return _sinkhorn_in_logs(logs, iterations).to(scores.dtype)
    matrix, rows = logs.exp(), torch.ones(size, dtype=logs.dtype, device=logs.device)
    columns = torch.ones(prototypes, dtype=logs.dtype, device=logs.device)
    for _ in range(iterations):
        columns = (size / prototypes) / (rows @ matrix)
        rows = 1.0 / (matrix @ columns)
    return (rows[:, None] * matrix * columns).to(scores.dtype)


def _sinkhorn_in_logs(logs: Tensor, iterations: int) -> Tensor:
    """The same, for any scores, at a hundred times the cost."""
    size, prototypes = logs.shape
    column = torch.log(torch.tensor(size / prototypes, dtype=torch.float64))
    for _ in range(iterations):
        logs = logs - torch.logsumexp(logs, dim=0, keepdim=True) + column
        logs = logs - torch.logsumexp(logs, dim=1, keepdim=True)
    return logs.exp()


def swapped_prediction(
    scores1: Tensor, scores2: Tensor, temperature: float, epsilon: float, iterations: int
) -> Tensor:
    """SwAV's loss: each view predicts the code of the other.

    -1/2 ( <q2, log softmax(scores1 / T)> + <q1, log softmax(scores2 / T)> )
    """
    total = scores1.new_zeros(())
    for ours, theirs in ((scores1, scores2), (scores2, scores1)):
        codes = sinkhorn(theirs, epsilon, iterations)
        total = total - 0.5 * (codes * F.log_softmax(ours / temperature, dim=1)).sum(dim=1).mean()
    return total


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
