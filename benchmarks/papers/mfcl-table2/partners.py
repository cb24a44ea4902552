"""How well the two views of an image are told to be partners by the simplest marks of their z.

    python benchmarks/papers/mfcl-table2/partners.py RUN [RUN ...]      # run directories of MFCL

Marks are the mean and the spread of every channel of the sensor's representation. A linear map from
a view's marks to its partner's is fitted on 1,280 images; then each of 320 other views looks for
its partner among all 320. `together` encodes both views at once, as PN does for the upload with
`method.upload_peers = "views"`, `apart` one by one, as it does by default and for test images;
without PN both are the same.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.task import METHOD
from coterie.data.batches import DataShard
from coterie.experiment.config import load
from coterie.experiment.prepare import Experiment, prepare
from coterie.nets.norm import paired

FITTED, TESTED, BATCH = 1280, 320, 160
SENSOR = "backbone.sensor."


def marks(z: Tensor) -> Tensor:
    """Mean and spread of every channel."""
    return torch.cat([z.mean(dim=(2, 3)), z.std(dim=(2, 3))], dim=1).double()


def views(experiment: Experiment, sensor: nn.Module, together: bool) -> tuple[Tensor, Tensor]:
    """Marks of two views of training images drawn over all clients."""
    config, held = experiment.config, np.concatenate(list(experiment.partition.train.values()))
    rows = np.sort(seeds.generator(0, "partners").choice(held, FITTED + TESTED, replace=False))
    nobody = np.empty(0, np.int64)
    shard = DataShard(experiment.dataset, rows, nobody, augment=config.data.augment)
    local = replace(config.local, epochs=1, steps=0, batch_size=BATCH)
    found: list[Tensor] = []
    for batch in shard.batches(local, ("train", "train"), lambda what: seeds.generator(0, what)):
        with torch.no_grad(), paired(sensor, 2 if together else 1):
            found.append(torch.stack(marks(sensor(torch.cat(batch.views))).chunk(2)))
    one, two = torch.cat(found, dim=1)
    middle, spread = one.mean(dim=0), one.std(dim=0) + 1e-6
    return (one - middle) / spread, (two - middle) / spread


def share_found(one: Tensor, two: Tensor) -> float:
    """The share of views whose partner is the nearest to what their marks let expect."""
    given, wanted = torch.cat([one[:FITTED], two[:FITTED]]), torch.cat([two[:FITTED], one[:FITTED]])
    ridge = torch.eye(given.shape[1], dtype=given.dtype)
    map_ = torch.linalg.solve(given.T @ given + ridge, given.T @ wanted)
    certainty = 1.0 / (wanted - given @ map_).std(dim=0)
    distances = torch.cdist(one[FITTED:] @ map_ * certainty, two[FITTED:] * certainty)
    return float((distances.argmin(dim=1) == torch.arange(len(distances))).double().mean())


def main() -> None:
    """A line for every run."""
    torch.set_num_threads(1)
    for run in map(Path, sys.argv[1:]):
        config = load(run / "config.toml")
        weights = load_file(run / "model.safetensors")
        with tempfile.TemporaryDirectory() as folder:
            experiment = prepare(config, Path(folder))
        sensor = experiment.parts.nets(METHOD)["model"].get_submodule(SENSOR.rstrip(".")).eval()
        sensor.load_state_dict(
            {n.removeprefix(SENSOR): t for n, t in weights.items() if n.startswith(SENSOR)},
            strict=config.net.bn_buffers == "average",
        )
        method, scenario = config.tables["method"], config.tables["partition"].get("scenario")
        for together in (False, True):
            found = share_found(*views(experiment, sensor, together))
            how = "together" if together else "apart"
            print(f"{method['sensor_norm']}, scenario {scenario}, {how}: {found:.3f} of {TESTED}")


if __name__ == "__main__":
    main()
