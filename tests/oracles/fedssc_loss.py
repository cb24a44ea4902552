"""FedSSC's loss written out sample by sample, from Eq. 2 to 5."""

from pathlib import Path
from typing import Any

import torch
from federation import CLASSES, Federation, Tables, contrast, cosine
from torch import Tensor
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, Payload, Tensors
from coterie.core.task import Round
from coterie.methods.fedssc import FedSSC
from coterie.nets.heads import Network

EVERY = tuple(range(CLASSES))


def fedssc(folder: Path, tables: Tables | None = None, **fields: Any) -> Federation:
    return Federation(folder, "fedssc", tables=tables, **fields)


def addressed(zs: Tensor, known: tuple[int, ...] = EVERY) -> Payload:
    """What a client is sent."""
    valid = torch.tensor([k in known for k in range(len(zs))])
    return Bundle({"representations": {"zs": zs}, "known": {"valid": valid}})


def glob(z: Tensor, y: Tensor, zs: Tensor, known: tuple[int, ...], tau: float) -> Tensor:
    """Eq. 3: -log e^{cos(z, zs_y)/tau} / sum_k e^{cos(z, zs_k)/tau}, over the classes known."""
    terms = []
    for i, label in enumerate(y.tolist()):
        if label in known:
            powers = {k: (cosine(z[i], zs[k]) / tau).exp() for k in known}
            terms.append(-(powers[label] / torch.stack(list(powers.values())).sum()).log())
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=torch.float64)


def pairs(z: Tensor, y: Tensor, zs: Tensor, known: tuple[int, ...], tau: float) -> Tensor:
    """SupCon over the batch and the shared vectors; the gradient flows through both samples."""
    terms, labels = [], y.tolist()
    for a in range(len(z)):
        candidates = [(z[b], labels[b]) for b in range(len(z)) if b != a]
        candidates += [(zs[k], k) for k in known]
        powers = [(cosine(z[a], other) / tau).exp() for other, _ in candidates]
        positives = [p for p, (_, k) in zip(powers, candidates, strict=True) if k == labels[a]]
        if positives:
            below = torch.stack(powers).sum()
            terms.append(-torch.stack([(p / below).log() for p in positives]).mean())
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=torch.float64)


def by_hand(
    fed: Federation,
    client: int,
    place: Round,
    received: Tensors,
    *,
    mu_glob: float,
    zs: Tensor,
    previous: Tensors | None = None,
    known: tuple[int, ...] = EVERY,
    mu_class: float = 1.0,
    mu_moon: float | None = None,
    parts: tuple[str, ...] = ("backbone", "projector", "classifier"),
) -> tuple[Tensors, float]:
    """Eq. 5: l_class + mu_moon l_moon + mu_glob l_glob."""
    method, vectors = fed.method, zs.double()
    assert isinstance(method, FedSSC)
    z_glob = fed.reference(received)
    z_prev = fed.reference(previous) if previous is not None else None
    mu_moon = method.mu_moon if mu_moon is None else mu_moon
    shared = pairs if method.local_pairs else glob
    tau_glob = method.tau if method.tau_glob is None else method.tau_glob

    def loss(net: Network, batch: Batch) -> Tensor:
        out = net(batch.x.double())
        total = mu_class * F.cross_entropy(out.logits, batch.y)
        if z_prev is not None:
            total = total + mu_moon * contrast(out.z, z_glob(batch), [z_prev(batch)], method.tau)
        return total + mu_glob * shared(out.z, batch.y, vectors, known, tau_glob)

    return fed.trained(client, place, received, loss, parts)
