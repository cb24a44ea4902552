"""`embedding.npz`: representations of a sample of the training data by the final model.

features    (n, d)  h, before the projector
projection  (n, e)  z, after it; equal to h if there is no projector
class       (n,)    the label
client      (n,)    the client of the sample
index       (n,)    the index of the sample in the training set
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
_BATCH = 256
_SMALL = 20_000  # training samples up to which "auto" writes the file
_DRAWN = 500  # samples of "auto": as many as a picture shows without hiding each other
Samples = Mapping[ClientId, tuple[Shard, np.ndarray]]  # with their indices in the training set


def choose_count(wanted: int | str, available: int) -> int:
    """Choose how many samples are embedded; "auto": a few hundred where the data are small."""
    if isinstance(wanted, int):
        return wanted
    return _DRAWN if available <= _SMALL else 0


def draw(train: Mapping[ClientId, np.ndarray], count: int, seed: int) -> dict[ClientId, np.ndarray]:
    """Draw `count` training samples of all clients together, grouped by client."""
    clients = np.concatenate([np.full(len(rows), client) for client, rows in train.items()])
    rows = np.concatenate(list(train.values()))
    chosen = seeds.generator(seed, "embedding").permutation(len(rows))[:count]
    drawn = {client: rows[chosen[clients[chosen] == client]] for client in train}
    return {client: np.sort(own) for client, own in drawn.items() if len(own)}


def write(path: Path, net: Frozen, samples: Samples, labels: np.ndarray, seed: int) -> None:
    """Encode the samples of every client's shard, with the client's own shift, and write the file.

    Batches are shuffled across clients: BatchNorm may use the statistics of a batch, and those of
    a single client's samples would be biased.
    """
    x = torch.cat([batch.x for shard, _ in samples.values() for batch in shard.sweep()])
    index = np.concatenate([rows for _, rows in samples.values()])
    clients = np.concatenate([np.full(len(rows), c) for c, (_, rows) in samples.items()])
    order = seeds.generator(seed, "embedding/order").permutation(len(index))
    shuffled = x[torch.from_numpy(order)]
    batches = [net(shuffled[start : start + _BATCH]) for start in range(0, len(order), _BATCH)]
    arrays = {
        "features": torch.cat([outputs.h for outputs in batches]).cpu().numpy(),
        "projection": torch.cat([outputs.z for outputs in batches]).cpu().numpy(),
        "class": labels[index[order]],
        "client": clients[order],
        "index": index[order],
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    replace_durably(path, buffer.getvalue())
