"""Contrastive losses that several methods share: free functions of representations.

Gradients flow through the representations of the local network only; whatever comes from a
reference network or from the server enters as a constant.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from coterie.native.contrast import contrast, takes
from coterie.native.switch import kernels_on

Similarity = Literal["cosine", "dot"]

_SHORTEST = 1e-8  # the least length that a vector is divided by


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

    Without an earlier model there is nothing to compare with and the loss is 0. It can be
    differentiated once.
    """
    references = [one.detach() for one in (z_glob, *z_prevs)]
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
        ctx.save_for_backward(slope)
        loss, *cosines = means.unbind()
        ctx.mark_non_differentiable(*cosines)
        return loss, *cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
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


def representation_gap(z: Tensor, z_glob: Tensor) -> Tensor:
    """MOON's l2 variant: the mean of |z - z_glob|, neither squared nor normalised.

    Where z = z_glob, as at the first step of a round, the gradient is 0.
    """
    gaps: Tensor = torch.linalg.vector_norm(z - z_glob.detach(), dim=-1)
    return gaps.mean()


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

    `cosine` normalises both sides, `dot` the prototype alone. Samples of a class that is not known
    contribute nothing; the mean is over the others, and 0 over none.
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

    Anchors without a positive are left out; the gradient does not reach the shared vectors.
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
    """The sum of the representations of every class, and how many samples it has."""
    sums = torch.zeros(classes, z.shape[1], dtype=z.dtype, device=z.device)
    return sums.index_add_(0, y, z), torch.bincount(y, minlength=classes)
