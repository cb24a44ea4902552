"""FedProc's loss and its prototypes written out sample by sample, from Eq. 2 to 5."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import CLASSES, WIDTH, Federation, Tables, cosine
from torch import Tensor
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import ServerState, Tensors
from coterie.core.task import Round
from coterie.methods.fedproc import FedProc
from coterie.nets.heads import Network


def fedproc(folder: Path, tables: Tables | None = None, **fields: Any) -> Federation:
    return Federation(folder, "fedproc", tables=tables, **fields)


def fedproc_on_images(folder: Path, **fields: Any) -> Federation:
    """The network of the paper's CIFAR-10: simple-cnn, 256 entries of z, ten classes."""
    tables: Tables = {
        "net": {"backbone": "simple-cnn", "projection": 256},
        "data": {"augment": "crop-flip"},
        "local": {"batch_size": 20},
    }
    return Federation(folder, "fedproc", [[2] * 10, [1] * 10], tables, (3, 32, 32), **fields)


def knowing(server: ServerState, c: Tensor, known: tuple[int, ...]) -> ServerState:
    """A server that has prototypes of some classes."""
    valid = torch.tensor([k in known for k in range(CLASSES)])
    return server.replace(prototypes={"c": c}, known={"valid": valid})


def gpc(z: Tensor, y: Tensor, c: Tensor, known: tuple[int, ...], tau: float, dot: bool) -> Tensor:
    """Eq. 4: -log e^{s(z, c_y)/tau} / sum_k e^{s(z, c_k)/tau}, over the classes that are known."""
    terms = []
    for i, label in enumerate(y.tolist()):
        if label in known:
            powers = {}
            for k in known:
                s = z[i] @ c[k] / (c[k] @ c[k]).sqrt() if dot else cosine(z[i], c[k])
                powers[k] = (s / tau).exp()
            terms.append(-(powers[label] / torch.stack(list(powers.values())).sum()).log())
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=torch.float64)


def by_hand(
    fed: Federation,
    client: int,
    place: Round,
    server: ServerState,
    alpha: float,
    known: tuple[int, ...] = (0, 1, 2),
    parts: tuple[str, ...] = ("backbone", "projector", "classifier"),
) -> tuple[Tensors, float]:
    """Eq. 2: alpha l_gpc + (1 - alpha) l_ce."""
    method, c = fed.method, server["prototypes"]["c"].double()
    assert isinstance(method, FedProc)

    def loss(net: Network, batch: Batch) -> Tensor:
        z = net(batch.x.double()).z
        contrast = gpc(z, batch.y, c, known, method.tau, method.similarity == "dot")
        assert net.classifier is not None
        logits = net.classifier(z.detach() if method.ce_through == "classifier" else z)
        return alpha * contrast + (1 - alpha) * F.cross_entropy(logits, batch.y)

    return fed.trained(client, place, server["model"], loss, parts)


def extracted(fed: Federation, client: int, weights: Tensors) -> tuple[np.ndarray, list[int]]:
    """Sums and counts of z by class over a client's data: eval mode, test transform."""
    z_of = fed.reference(weights)
    sums, counts = np.zeros((CLASSES, WIDTH)), [0] * CLASSES
    for batch in fed.shard(client).sweep():
        z = z_of(batch).numpy()
        for i, label in enumerate(batch.y.tolist()):
            sums[label] += z[i]
            counts[label] += 1
    return sums, counts
