"""`fit`: train on data that a Python program has in memory, one part a site."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from coterie.core.errors import ConfigError
from coterie.data.datasets import Kind
from coterie.data.formats import npz
from coterie.engine.record import Recorder
from coterie.experiment.config import load
from coterie.experiment.given import GIVEN, divide_sites, has_labels, read_sites
from coterie.experiment.result import Result
from coterie.experiment.run import describe_start, execute
from coterie.experiment.settle import list_unlabelled
from coterie.report.progress import show_progress
from coterie.types import DataFrame, Part, PathLike, Samples

_BACKBONES: dict[Kind, str] = {"image": "simple-cnn", "signal": "conv1d", "table": "mlp"}
_KINDS: dict[int, Kind] = {2: "table", 3: "signal", 4: "image"}  # by the axes of a batch


def fit(
    sites: Mapping[str, Samples] | DataFrame,
    *,
    test: Samples | None = None,
    label: str | None = None,
    site: str | None = None,
    kind: Literal["auto", "image", "signal", "table"] = "auto",
    method: Part = "fedavg",
    objective: Part | None = None,
    out: PathLike | None = None,
    resume: bool = False,
    allow_inexact: bool = False,
    progress: bool | None = None,
    recorders: Sequence[Recorder] = (),
    **tables: Any,
) -> Result:
    """Train on the samples of several sites, each of which is a client.

    Samples are x, or a tuple (x, y): arrays, tensors, lists, data frames, or a torch `Dataset`. One
    data frame for all sites has a column `site`, and perhaps one with labels, `label`. Without
    `test`, a seeded fifth of every site is held out. Without `objective` it is `supervised`; data
    without labels need one that is not. Everything else is as in `run`; tables that are not given
    have their defaults.
    """
    read = read_sites(sites, label, site)
    if objective is None:
        if not has_labels(read):
            raise ConfigError(
                "the sites have no labels; choose what to learn without them: objective = "
                f"{', '.join(map(repr, list_unlabelled()))}"
            )
        objective = "supervised"
    name, given = next(iter(read.items()))
    first = npz.arrange(given.x, f"site {name!r}", kind)
    net = _BACKBONES[_KINDS.get(first.ndim, "image")]
    base = {"data": {"name": GIVEN, "kind": kind}, "net": {"backbone": net}}
    config = load(base, {"method": method, "objective": objective, **tables})
    divided = divide_sites(read, test, config.run.seed, kind)
    folder = Path(out) if out is not None else None
    with show_progress(progress, describe_start(config)) as shown:
        listeners = [*shown, *recorders]
        return execute(config, folder, resume, allow_inexact, listeners, divided, caller="fit")
