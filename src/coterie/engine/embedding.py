"""`embedding.npz`: what the final model makes of a sample of the training images.

features    (n, d)  h, before the projector
projection  (n, e)  z, behind it; h again where there is no projector
class       (n,)    the label
client      (n,)    whose sample it is
index       (n,)    which sample of the training set it is
"""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from coterie.core import seeds
from coterie.core.files import replace_durably
from coterie.core.task import ClientId
from coterie.kit.context import Shard
from coterie.kit.networks import Frozen

EMBEDDING = "embedding.npz"
_ROWS = 256  # samples at once


def draw(train: Mapping[ClientId, np.ndarray], count: int, seed: int) -> dict[ClientId, np.ndarray]:
    """So many training samples of all clients together, by client; drawn by the run's seed."""
    clients = np.concatenate([np.full(len(rows), client) for client, rows in train.items()])
    rows = np.concatenate(list(train.values()))
    chosen = seeds.generator(seed, "embedding").permutation(len(rows))[:count]
    held = {client: rows[chosen[clients[chosen] == client]] for client in train}
    return {client: np.sort(some) for client, some in held.items() if len(some)}


def write(
    path: Path,
    net: Frozen,
    shards: Mapping[ClientId, Shard],
    rows: Mapping[ClientId, np.ndarray],
    labels: np.ndarray,
    seed: int,
) -> None:
    """Encode the samples of every client's shard, as the client sees them, and write the file.

    They go through the network in a drawn order: where BatchNorm uses the statistics of a batch,
    one client's samples by themselves would mislead it.
    """
    x = torch.cat([batch.x for shard in shards.values() for batch in shard.sweep()])
    index = np.concatenate([rows[client] for client in shards])
    clients = np.concatenate([np.full(len(rows[client]), client) for client in shards])
    order = seeds.generator(seed, "embedding/order").permutation(len(index))
    drawn = x[torch.from_numpy(order)]
    found = [net(drawn[start : start + _ROWS]) for start in range(0, len(order), _ROWS)]
    arrays = {
        "features": torch.cat([outputs.h for outputs in found]).cpu().numpy(),
        "projection": torch.cat([outputs.z for outputs in found]).cpu().numpy(),
        "class": labels[index[order]],
        "client": clients[order],
        "index": index[order],
    }
    held = io.BytesIO()
    np.savez(held, **arrays)
    replace_durably(path, held.getvalue())
