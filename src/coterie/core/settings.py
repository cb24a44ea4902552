"""The plain tables of a configuration; without torch, so that a wrong key is reported fast."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from coterie.core import fields, registry
from coterie.core.errors import ConfigError

if TYPE_CHECKING:
    from coterie.core.task import Round

KernelKind = Literal["auto", "native", "torch"]
PrecisionInUse = Literal["fp32", "bf16"]
PrecisionKind = Literal["auto", PrecisionInUse]
NormKind = Literal["bn", "gn", "pn", "none"]
Peers = Literal["views", "images"]  # who is normalised together by PN in training
GROUPS = 16  # of channels, in GN and PN
WITHOUT_EFFECT = ("executor", "checkpoint", "record")  # tables that change no result
Standardise = Literal["federated", "site", "none"]
Missing = Literal["mean", "drop", "refuse"]

LEAST_NOISE, MOST_NOISE = 0.1, 1e6  # of privacy, in times of the clip norm

_EMBEDDED = 5000  # samples in `embedding.npz` at most
_DIRECTED = 2  # entries of z from which on it has more than a sign


@dataclass(frozen=True)
class RunSettings:
    """The `[run]` table."""

    seed: fields.Seed = 0
    rounds: fields.Rounds = 10  # training rounds; a method may add rounds of other kinds
    device: str = "auto"  # "auto": a GPU if there is one


@dataclass(frozen=True)
class DataSettings:
    """The `[data]` table."""

    name: str = "digits"
    root: str = ""  # the folder or file that contains the data
    kind: Literal["auto", "image", "signal", "table"] = "auto"  # of arrays whose axes do not tell
    augment: str | dict[str, Any] = "auto"  # a name, or { name = "package.module:Class", ... }
    holdout: fields.Share = 0.0  # share of every training class that is set aside before all else
    limit: fields.Count = 0  # size of a seeded, class-balanced subset of training samples; 0: all
    imbalance: Annotated[float, Ge(1.0), Le(fields.MOST)] = 1.0  # largest class to smallest
    resize: fields.Side = 0  # image files: resize the shorter side, crop the centre; 0: leave
    label: str = ""  # tables: the column of labels; empty: none
    site: str = ""  # tables: the column that says whose each row is; empty: none
    test: str = ""  # tables in one file: the file of test rows; empty: some rows are held out
    categorical: tuple[str, ...] = ()  # tables: columns of categories that are written as numbers
    standardise: Standardise = (
        "federated"  # tables: by the means of all sites, or of each by itself
    )
    missing: Missing = "mean"  # tables: fill missing numbers in, drop their rows, or refuse them


@dataclass(frozen=True)
class NetSettings:
    """The `[net]` table."""

    backbone: str = "simple-cnn"
    projection: fields.OptionalWidth = 256  # entries of z; 0: no projector
    unit_projection: bool = False  # z is divided by its length before all that sees it
    norm: NormKind = "bn"  # if the backbone has normalisation layers; simple-cnn has none
    norm_first: NormKind | Literal[""] = ""  # first two of residual networks; "": as `norm`
    groups: fields.Width = GROUPS  # of channels in "gn" and "pn"; the fitting divisor
    peers: Peers = "views"  # of "pn" in training: an image's views, or two images of one view
    stem: Literal["cifar", "imagenet", "none"] = "cifar"  # of residual networks
    bn_buffers: Literal["average", "local"] = "average"  # "local": never sent, one set per client
    options: dict[str, Any] = field(default_factory=dict)  # arguments of your own backbone
    weights: str = ""  # a file of pretrained weights to start from; empty: random ones
    weights_sha256: str = ""  # of that file; a file with another one is refused
    precision: PrecisionKind = "auto"  # of forward passes; weights are always float32
    kernel: KernelKind = "auto"  # "native": in C; "auto": those on a CPU, if they were built

    def __post_init__(self) -> None:
        if self.unit_projection and self.projection < _DIRECTED:
            raise ConfigError(
                "net.unit_projection = true needs a z that has a direction: net.projection of "
                f"{_DIRECTED} or more, not {self.projection}"
            )


@dataclass(frozen=True)
class Local:
    """How a client trains in one round: the `[local]` table."""

    epochs: fields.PositiveCount = 1
    steps: fields.Count = 0  # optimiser steps; above 0 it replaces `epochs`
    batch_size: fields.BatchSize = 64
    optimizer: Literal["sgd", "adam", "adamw", "lars"] = "sgd"
    lr: fields.Positive = 0.01
    momentum: fields.Decay = 0.9
    nesterov: bool = False
    weight_decay: fields.NonNegative = 1e-5
    schedule: Literal["constant", "cosine", "step"] = "constant"  # over the rounds of a stage
    warmup: fields.Count = 0  # rounds over which lr rises linearly
    milestones: tuple[fields.Count, ...] = ()  # rounds at which "step" multiplies lr by gamma
    gamma: fields.Positive = 0.1
    accumulate: fields.PositiveCount = 1  # batches per optimiser step
    clip: fields.NonNegative = 0.0  # largest gradient norm; 0: no clipping
    drop_last: bool = False  # drop an incomplete last batch, unless it is the only one

    def __post_init__(self) -> None:
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise ConfigError(
                "local.nesterov = true needs local.optimizer = 'sgd' and local.momentum above 0"
            )
        if self.schedule == "step" and not self.milestones:
            raise ConfigError("local.schedule = 'step' needs local.milestones, e.g. [60, 80]")

    def rate(self, round: "Round") -> float:
        """Return the learning rate of a round.

        Linear warm-up over the first `warmup` rounds; then constant, `lr (1 + cos(pi t / T)) / 2`,
        or times `gamma` at each milestone.
        """
        if round.step < self.warmup:
            return self.lr * (round.step + 1) / self.warmup
        if self.schedule == "cosine":
            done = (round.step - self.warmup) / max(1, round.steps - self.warmup)
            return 0.5 * self.lr * (1.0 + math.cos(math.pi * done))
        if self.schedule == "step":
            passed = sum(round.step >= milestone for milestone in self.milestones)
            return self.lr * float(self.gamma**passed)
        return self.lr


@dataclass(frozen=True)
class ServerSettings:
    """The `[server]` table."""

    optimizer: Literal["none", "momentum", "adam", "yogi", "adagrad"] = "none"
    lr: fields.Positive = 1.0
    momentum: fields.Decay = 0.9
    dampening: fields.Share = 0.0
    beta1: fields.Decay = 0.9
    beta2: fields.Decay = 0.99
    tau: fields.Positive = 1e-3


@dataclass(frozen=True)
class Cohort:
    """The `[cohort]` table."""

    fraction: fields.PositiveShare = 1.0  # of all clients, per round
    min_clients: fields.PositiveCount = 1  # fewer valid replies: the round is skipped
    drop_before: fields.Share = 0.0  # probability that an invited client is not reached
    drop_after: fields.Share = 0.0  # probability that a client trains and its upload is lost
    max_skipped: fields.PositiveCount = 5  # the run ends after so many skipped rounds in a row
    unseen: fields.Count = 0  # clients, drawn by the seed, that never train and are only tested


@dataclass(frozen=True)
class PrivacySettings:
    """The `[privacy]` table: differential privacy for clients, off unless `clip` is above 0."""

    clip: fields.NonNegative = 0.0  # largest norm of a client's update; 0: no privacy
    noise: Annotated[float, Ge(0.0), Le(MOST_NOISE)] = 0.0  # deviation, in times of `clip`
    delta: Annotated[float, Gt(0.0), Lt(1.0)] = 1e-5  # that epsilon is counted for
    epsilon: fields.NonNegative = 0.0  # the run ends before it exceeds this; 0: count only
    accountant: Literal["rdp", "pld"] = "rdp"  # "pld": tighter, slower for thousands of rounds

    def __post_init__(self) -> None:
        if self.clip and self.noise < LEAST_NOISE:
            raise ConfigError(
                f"privacy.clip = {self.clip:g} needs privacy.noise of {LEAST_NOISE:g} or more, not "
                f"{self.noise:g}: 1 is a usual start"
            )
        if not self.clip and (self.noise or self.epsilon):
            key = "noise" if self.noise else "epsilon"
            raise ConfigError(
                f"privacy.{key} = {getattr(self, key):g} does nothing without privacy.clip, the "
                "largest norm of a client's update: 1 is a usual start"
            )


@dataclass(frozen=True)
class ExecutorSettings:
    """The `[executor]` table: where tasks run. It never changes a result."""

    kind: Literal["serial", "processes", "ray"] = "processes"
    workers: fields.Count = 0  # 0: one per core; of "ray" on GPUs: one per GPU
    devices: tuple[str, ...] = ()  # assigned to workers round-robin; empty: run.device
    timeout: fields.NonNegative = 0.0  # seconds per client and task; 0: no limit
    address: str = ""  # of a Ray cluster, HOST:PORT or "auto"; empty: one on this machine
    insecure: bool = False  # use a Ray cluster that asks for no token

    def __post_init__(self) -> None:
        if self.kind != "ray" and (self.address or self.insecure):
            key = "address" if self.address else "insecure"
            raise ConfigError(f"executor.{key} is for executor.kind = 'ray', not {self.kind!r}")
        if self.kind == "ray" and (wrong := set(self.devices) - {"cpu", "cuda"}):
            raise ConfigError(
                f"executor.devices = {list(self.devices)}: with executor.kind = 'ray' a device is "
                f"'cpu' or 'cuda', not {min(wrong)!r}; Ray chooses the GPU"
            )


@dataclass(frozen=True)
class EvaluateSettings:
    """The `[evaluate]` table; `evaluators` is written `with` there.

    Of the evaluators these are the keys; `Config.evaluators` has the evaluators themselves.
    """

    every: fields.Count = 1  # rounds between evaluations; 0: only after the last round
    last: tuple[str, ...] = ()  # additional evaluators after the last round
    targets: tuple[fields.Share, ...] = ()  # accuracies; rounds and bytes to each are reported
    stop_at_target: bool = False  # end the run when the highest target is reached
    metric: str = "accuracy"  # the metric of targets, patience and the best round
    patience: fields.Count = 0  # end the run after so many evaluations without a new best; 0: never
    evaluators: tuple[str, ...] = ("accuracy", "personal")


@dataclass(frozen=True)
class Checkpoint:
    """The `[checkpoint]` table."""

    every: fields.Count = 10  # rounds between checkpoints; 0: only after the last round
    keep: fields.PositiveCount = 2


@dataclass(frozen=True)
class RecordSettings:
    """The `[record]` table."""

    to: tuple[str, ...] | str = ()  # tracking tools: names of `coterie list sinks`, or own classes
    online: bool = False  # whether they may send anything to other machines
    embedding: int | str = "auto"  # samples in `embedding.npz`; "auto": 500 of small data; 0: none

    @property
    def sinks(self) -> tuple[str, ...]:
        """The tools of `to`; a single name is a list of one."""
        return (self.to,) if isinstance(self.to, str) else self.to

    def __post_init__(self) -> None:
        for name in self.sinks:
            if ":" not in name:
                registry.check_known("record.to", name, registry.names("sinks"))
        if len(set(self.sinks)) < len(self.sinks):
            raise ConfigError(f"record.to = {list(self.sinks)} names a tool twice")
        wanted = self.embedding
        if wanted != "auto" and not (isinstance(wanted, int) and 0 <= wanted <= _EMBEDDED):
            raise ConfigError(
                f"record.embedding = {wanted!r} must be 'auto' or a number from 0 to {_EMBEDDED}"
            )
