"""Contrastive losses that several methods share: free functions of representations.

Gradients flow through the representations of the local network only; whatever comes from a
reference network or from the server enters as a constant.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Similarity = Literal["cosine", "dot"]


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

    Without an earlier model there is nothing to compare with and the loss is 0.
    """
    toward = F.cosine_similarity(z, z_glob.detach(), dim=-1)
    if not z_prevs:
        return ModelContrast(toward.new_zeros(()), toward.detach().mean(), toward.new_zeros(()))
    away = [F.cosine_similarity(z, z_prev.detach(), dim=-1) for z_prev in z_prevs]
    logits = torch.stack([toward, *away], dim=1) / tau
    loss = (torch.logsumexp(logits, dim=1) - logits[:, 0]).mean()
    means = logits.detach().mean(dim=0) * tau
    return ModelContrast(loss, means[0], means[1:].mean())


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
