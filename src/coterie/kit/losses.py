"""All losses of methods and objectives: free functions of what networks give for a batch.

    between models        model_contrast, representation_gap
    with classes          prototype_contrast, class_pairs; class_sums for the prototypes
    between two views     nt_xent, negative_cosine, symmetric_distance, normalised_regression,
                          swapped_prediction; sinkhorn for its codes

B is the number of samples of a batch, d the length of a representation, K the number of classes or
prototypes. Representations z are (B, d), labels y (B,) int64, scores (B, K). A loss is a scalar,
the mean over the batch, for any B of two or more. Whatever comes from a reference network, from the
server or from the side that is predicted is a constant: no gradient flows into it.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.native.contrast import contrast, takes
from coterie.native.switch import intercepted, kernels_on

Similarity = Literal["cosine", "dot"]

_SHORTEST = 1e-8  # the least length that a vector is divided by
_ROUNDING = 64  # times the machine epsilon: how far two ways to compute a vector may differ
_FAR = 200.0  # logarithms of scores so far apart could leave float64 when they are scaled


class ModelContrast(NamedTuple):
    """The model-contrastive loss of a batch, and the mean cosines it is made of."""

    loss: Tensor
    cos_glob: Tensor
    cos_prev: Tensor


def model_contrast(
    z: Tensor, z_glob: Tensor, z_prevs: Sequence[Tensor], tau: float
) -> ModelContrast:
    """MOON's term: nearer to the global model's view of a sample than to earlier local ones.

        -log( e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + sum_b e^{cos(z, z_prev_b)/tau}) )

    z of the trained network, z_glob and each of z_prevs are (B, d). Without an earlier model there
    is nothing to compare with and the loss is 0.
    """
    references = [one.detach() for one in (z_glob, *z_prevs)]
    if intercepted():
        loss, near, *far = _contrast_by_graph(z, references, tau)
    else:
        means = _ModelContrast.apply(z, tau, *references)  # type: ignore[no-untyped-call]
        loss, near, *far = means
    if len(far) == 1:
        return ModelContrast(loss, near, far[0])
    return ModelContrast(loss, near, torch.stack(far).mean() if far else near.new_zeros(()))


class _ModelContrast(torch.autograd.Function):
    """The mean loss and the mean cosines; the gradient is of the loss, and found with it.

    d loss / d z = 1/(n tau) sum_k (p_k - [k = 0]) (r_k/|r_k| - cos_k z/|z|) / |z|,
    p = softmax_k(cos_k / tau),   r_0 from the global model, the others from earlier local ones
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, tau: float, *references: Tensor) -> tuple[Tensor, ...]:
        by = contrast if takes(z, references) and kernels_on() else _contrast
        means, slope = by(z, references, tau, _SHORTEST)
        ctx.save_for_backward(slope, z, *references)
        ctx.tau = tau
        loss, *cosines = means.unbind()
        ctx.mark_non_differentiable(*cosines)
        return loss, *cosines

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        slope, z, *references = ctx.saved_tensors
        if torch.is_grad_enabled():  # what is returned will be differentiated too
            loss = _contrast_by_graph(z, references, ctx.tau)[0]
            (slope,) = torch.autograd.grad(loss, z, create_graph=True)
        return slope * upstream, *(None,) * (len(ctx.needs_input_grad) - 1)


def _contrast(
    z: Tensor, references: Sequence[Tensor], tau: float, shortest: float
) -> tuple[Tensor, Tensor]:
    """As `native.contrast`, in torch."""
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_(min=shortest)
    direction = z / length
    toward = F.normalize(torch.stack(list(references)), dim=-1, eps=shortest)
    cosines = (toward * direction).sum(dim=-1)
    logs = F.log_softmax(cosines / tau, dim=0)
    pull = logs.exp()
    pull[0] -= 1.0
    along = (pull * cosines).sum(dim=0).unsqueeze(1)
    slope = (pull.unsqueeze(2) * toward).sum(dim=0).addcmul_(along, direction, value=-1.0)
    means = torch.cat([-logs[:1], cosines]).mean(dim=1)
    return means, slope.div_(length * (tau * len(z)))


def _contrast_by_graph(z: Tensor, references: Sequence[Tensor], tau: float) -> tuple[Tensor, ...]:
    """The mean loss and the mean cosines; torch finds the gradient, and that of the gradient."""
    toward = F.normalize(torch.stack(list(references)), dim=-1, eps=_SHORTEST)
    cosines = (toward * F.normalize(z, dim=-1, eps=_SHORTEST)).sum(dim=-1)
    loss = -F.log_softmax(cosines / tau, dim=0)[0].mean()
    return loss, *cosines.detach().mean(dim=1).unbind()


def representation_gap(z: Tensor, z_glob: Tensor) -> Tensor:
    """MOON's l2 variant: the mean of |z - z_glob|, neither squared nor normalised.

    Both are (B, d). Where z = z_glob, as at the first step of a round, the gradient is 0. A gap
    that rounding explains counts as none: its gradient would be of full length, in any direction.
    """
    target = z_glob.detach()
    gaps: Tensor = torch.linalg.vector_norm(z - target, dim=-1)
    rounding = _ROUNDING * torch.finfo(z.dtype).eps * torch.linalg.vector_norm(target, dim=-1)
    apart: Tensor = gaps * (gaps.detach() > rounding)
    return apart.mean()


def prototype_contrast(
    z: Tensor,
    y: Tensor,
    prototypes: Tensor,
    known: Tensor,
    tau: float = 1.0,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Cross-entropy of a sample's similarities to the classes' prototypes c_k.

        -log( e^{s(z, c_y)/tau} / sum_k e^{s(z, c_k)/tau} ),   k over the known classes

    Prototypes are (K, d), `known` is (K,) bool. `cosine` normalises both sides, `dot` the prototype
    alone. Samples of a class that is not known contribute nothing; the mean is over the others, and
    0 over none.
    """
    directions = F.normalize(prototypes.detach(), dim=-1)
    vectors = F.normalize(z, dim=-1) if similarity == "cosine" else z
    scores = (vectors @ directions.T) / tau
    if bool(known.all()):
        return F.cross_entropy(scores, y)
    scores = scores.masked_fill(~known, -torch.inf)
    usable = known[y]
    losses = F.cross_entropy(scores[usable], y[usable], reduction="sum")
    return losses / usable.sum().clamp(min=1)


def class_pairs(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, tau: float) -> Tensor:
    """Supervised contrast within a batch and with shared class vectors (FedSSC's local pairs).

    For an anchor a, P(a) are the other samples of its class and that class's shared vector, A(a)
    all other samples and all known shared vectors:

        -1/|P(a)| sum_{p in P(a)} log( e^{cos(z_a, p)/tau} / sum_{q in A(a)} e^{cos(z_a, q)/tau} )

    The shared vectors are (K, d), `known` is (K,) bool. Anchors without a positive are left out;
    the gradient does not reach the shared vectors.
    """
    samples = F.normalize(z, dim=-1)
    shared = F.normalize(prototypes.detach(), dim=-1)
    scores = torch.cat([samples @ samples.T, samples @ shared.T], dim=1) / tau
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    classes = torch.arange(len(prototypes), device=z.device)
    candidates = torch.cat([~itself, known.expand(len(z), -1)], dim=1)
    alike = torch.cat([y[:, None] == y[None, :], y[:, None] == classes[None, :]], dim=1)
    positives = alike & candidates
    counts = positives.sum(dim=1)
    # a finite stand-in for -inf: an anchor without any candidate must not make a NaN gradient
    scores = scores.masked_fill(~candidates, torch.finfo(scores.dtype).min)
    logs = scores - torch.logsumexp(scores, dim=1, keepdim=True)
    losses = -logs.masked_fill(~positives, 0.0).sum(dim=1) / counts.clamp(min=1)
    return losses.sum() / (counts > 0).sum().clamp(min=1)


def class_sums(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The sum of the representations of every class, (K, d), and how many samples it has, (K,)."""
    sums = torch.zeros(classes, z.shape[1], dtype=z.dtype, device=z.device)
    return sums.index_add_(0, y, z), torch.bincount(y, minlength=classes)


def nt_xent(z1: Tensor, z2: Tensor, tau: float) -> Tensor:
    """SimCLR's loss: identify the other view of a sample among the 2B views of a batch.

        mean_i -log( e^{cos(z_i, z_j)/tau} / sum_{k != i} e^{cos(z_i, z_k)/tau} )

    where j is the other view of i. z1 and z2 are (B, d), view 1 and view 2 of the same samples.
    """
    size = len(z1)
    z = F.normalize(torch.cat([z1, z2]), dim=-1)
    scores = (z @ z.T) / tau
    itself = torch.eye(2 * size, dtype=torch.bool, device=z.device)
    scores = scores.masked_fill(itself, -torch.inf)
    partners = torch.arange(2 * size, device=z.device).roll(size)
    return F.cross_entropy(scores, partners)


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """D(p, z) = -cos(p, z), the mean over the batch; p and z are (B, d), z is a constant."""
    return -F.cosine_similarity(p, z.detach(), dim=-1).mean()


def symmetric_distance(p1: Tensor, p2: Tensor, z1: Tensor, z2: Tensor) -> Tensor:
    """SimSiam's loss D(p1, z2) / 2 + D(p2, z1) / 2, and BYOL's with z of the target network.

    p and z of either view are (B, d); D is `negative_cosine`.
    """
    return 0.5 * negative_cosine(p1, z2) + 0.5 * negative_cosine(p2, z1)


def normalised_regression(p: Tensor, z: Tensor) -> Tensor:
    """BYOL's regression |p/|p| - z/|z||^2 = 2 - 2 cos(p, z), the mean over the batch.

    p and z are (B, d), z is a constant. It is 2 + 2 `negative_cosine`; the objective `byol`
    descends the latter, whose gradient is half of this one.
    """
    gaps = F.normalize(p, dim=-1) - F.normalize(z.detach(), dim=-1)
    return gaps.square().sum(dim=-1).mean()


def swapped_prediction(
    scores1: Tensor, scores2: Tensor, temperature: float, epsilon: float, iterations: int
) -> Tensor:
    """SwAV's loss: each view predicts the code of the other.

        -1/2 ( <q2, log softmax(scores1 / T)> + <q1, log softmax(scores2 / T)> )

    Scores are (B, K), the cosines of a view with K prototypes; the codes q are `sinkhorn` of them.
    """
    total = scores1.new_zeros(())
    for ours, theirs in ((scores1, scores2), (scores2, scores1)):
        codes = sinkhorn(theirs, epsilon, iterations)
        total = total - 0.5 * (codes * F.log_softmax(ours / temperature, dim=1)).sum(dim=1).mean()
    return total


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes (B, K) of B samples over K prototypes that use all prototypes alike.

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
