"""`fit`: train on data that a Python program has in memory, one part a site."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from coterie.core.errors import ConfigError
from coterie.core.settings import DataSettings
from coterie.data.datasets import KINDS, AnyKind, Kind, Raw
from coterie.data.table_sites import LabelledTable
from coterie.engine.record import Recorder
from coterie.experiment.config import Config, load
from coterie.experiment.given import divide_sites, has_labels, read_sites
from coterie.experiment.load_data import load_data, read_options
from coterie.experiment.own import GIVEN
from coterie.experiment.result import Result
from coterie.experiment.run import describe_start, execute
from coterie.experiment.settle import list_unlabelled, settle
from coterie.report.progress import show_progress
from coterie.types import DataFrame, Part, PathLike, Samples

_BACKBONES: dict[Kind, str] = {"image": "simple-cnn", "signal": "conv1d", "table": "mlp"}


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
    if kind not in get_args(AnyKind):
        raise ConfigError(f"kind = {kind!r} must be one of: {', '.join(get_args(AnyKind))}")
    overrides: dict[str, Any] = {"method": method, **tables}
    if objective is not None:
        overrides["objective"] = objective
    stated = {"kind": kind if kind != "auto" else None, "label": label, "site": site}
    overrides |= {f"data.{key}": value for key, value in stated.items() if value is not None}
    asked = load({"data": {"name": GIVEN}}, overrides)
    _check_tables(asked, tables)
    options, form = read_options(asked.data), (asked.data.kind, asked.data.resize)
    given = read_sites(sites, options.label, options.site, *form)
    first = next(iter(given.values()))
    is_frame = isinstance(first, LabelledTable)
    if objective is None and not has_labels(given):
        column = "name their column with label='COLUMN', or " if is_frame and not label else ""
        raise ConfigError(
            f"the sites have no labels; {column}choose what to learn without them: objective = "
            f"{', '.join(map(repr, list_unlabelled()))}"
        )
    data_kind = KINDS[first.x_train.ndim - 1] if isinstance(first, Raw) else "table"
    base = {"data": {"name": GIVEN}, "net": {"backbone": _BACKBONES[data_kind]}}
    config = load(base, overrides)
    divided = divide_sites(given, test, config.run.seed, form[0], options, resize=form[1])
    if config.cohort.unseen and divided[0].columns:
        loaded = load_data(config, divided)
        unseen = settle(loaded.config, loaded.dataset, loaded.shares).unseen_names
        options = replace(options, unseen=unseen)
        divided = divide_sites(given, test, config.run.seed, form[0], options, resize=form[1])
    folder = Path(out) if out is not None else None
    opening = describe_start(config, f"{len(given)}-sites")
    with show_progress(progress, opening) as shown:
        listeners = [*shown, *recorders]
        return execute(config, folder, resume, allow_inexact, listeners, divided, caller="fit")


def _check_tables(config: Config, tables: Mapping[str, Any]) -> None:
    """Refuse keys that choose or divide data: those of the sites are given, and divided by them."""
    if wrong := [name for name in tables if name.partition(".")[0] == "partition"]:
        raise ConfigError(f"{wrong[0]} is for data that Coterie divides: a site is a client here")
    defaults = DataSettings(name=GIVEN)
    for key in ("name", "root", "test", "holdout", "limit", "imbalance"):
        if (value := getattr(config.data, key)) != getattr(defaults, key):
            raise ConfigError(f"data.{key} = {value!r} has no meaning for samples that are given")
