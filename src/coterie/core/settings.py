"""The plain tables of a configuration. No torch here: a wrong key is answered without it."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from coterie.core.errors import ConfigError
from coterie.core.fields import (
    Count,
    Decay,
    NonNegative,
    Positive,
    PositiveCount,
    PositiveShare,
    Share,
)

if TYPE_CHECKING:
    from coterie.core.task import Round

KernelKind = Literal["auto", "native", "torch"]
NormKind = Literal["bn", "gn", "pn", "none"]


@dataclass(frozen=True)
class RunSettings:
    """The `[run]` table."""

    seed: Count = 0
    rounds: PositiveCount = 10  # training rounds; a method may add rounds of other kinds
    device: str = "auto"  # "auto": a GPU where there is one


@dataclass(frozen=True)
class DataSettings:
    """The `[data]` table."""

    name: str = "digits"
    root: str = ""  # the folder or file the data is in
    augment: str | dict[str, Any] = "none"  # a name, or { name = "package.module:Class", ... }
    holdout: Share = 0.0  # a share of every class of the training samples that is set aside first
    limit: Count = 0  # a seeded, class-balanced subset of so many training samples; 0: all
    imbalance: Annotated[float, Ge(1.0)] = 1.0  # a long tail: most to fewest samples of a class
    resize: Count = 0  # image files: shorter side to so many pixels, centre cut out; 0: as they are


@dataclass(frozen=True)
class NetSettings:
    """The `[net]` table."""

    backbone: str = "simple-cnn"
    projection: Annotated[int, Ge(0)] = 256  # entries of z; 0: no projector
    norm: NormKind = "bn"  # where the backbone has normalisation layers; simple-cnn has none
    norm_first: NormKind | Literal[""] = ""  # of the first two in residual networks; "": as `norm`
    stem: Literal["cifar", "imagenet", "none"] = "cifar"  # of residual networks
    bn_buffers: Literal["average", "local"] = "average"  # "local": never sent, one set a client
    options: dict[str, Any] = field(default_factory=dict)  # arguments of a backbone of one's own
    kernel: KernelKind = "auto"  # "native": in C; "auto": that, where it was built and on a CPU


@dataclass(frozen=True)
class Local:
    """How a client trains in one round: the `[local]` table."""

    epochs: PositiveCount = 1
    steps: Count = 0  # optimiser steps; above 0 it replaces `epochs`
    batch_size: Annotated[int, Ge(2)] = 64
    optimizer: Literal["sgd", "adam", "adamw", "lars"] = "sgd"
    lr: Positive = 0.01
    momentum: Decay = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 1e-5
    schedule: Literal["constant", "cosine", "step"] = "constant"  # over the rounds of a stage
    warmup: Count = 0  # rounds over which lr rises linearly
    milestones: tuple[Count, ...] = ()  # rounds at which "step" multiplies lr by gamma
    gamma: Positive = 0.1
    accumulate: PositiveCount = 1  # batches per optimiser step
    clip: NonNegative = 0.0  # the largest gradient norm; 0: unlimited
    drop_last: bool = False  # leave out a short last batch, where a whole one exists

    def __post_init__(self) -> None:
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise ConfigError(
                "local.nesterov = true needs local.optimizer = 'sgd' and local.momentum above 0"
            )
        if self.schedule == "step" and not self.milestones:
            raise ConfigError("local.schedule = 'step' needs local.milestones, e.g. [60, 80]")

    def rate(self, round: "Round") -> float:
        """The learning rate of a round.

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
    lr: Positive = 1.0
    momentum: Decay = 0.9
    dampening: Share = 0.0
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Positive = 1e-3


@dataclass(frozen=True)
class Cohort:
    """The `[cohort]` table."""

    fraction: PositiveShare = 1.0  # of all clients, per round
    min_clients: PositiveCount = 1  # fewer valid replies: the round is skipped
    drop_before: Share = 0.0  # chance that an invited client is not reached
    drop_after: Share = 0.0  # chance that a client does its work and its upload is lost
    max_skipped: PositiveCount = 5  # skipped rounds in a row that end the run


@dataclass(frozen=True)
class ExecutorSettings:
    """The `[executor]` table: where tasks run. It never changes a result."""

    kind: Literal["serial", "processes"] = "processes"
    workers: Count = 0  # 0: one per core
    devices: tuple[str, ...] = ()  # shared round-robin by the workers; empty: run.device
    timeout: NonNegative = 0.0  # seconds a client may take; 0: no limit


@dataclass(frozen=True)
class EvaluateSettings:
    """The `[evaluate]` table; `evaluators` is written `with` there.

    Of the evaluators these are the keys; `Config.evaluators` has the evaluators themselves.
    """

    every: Count = 1  # rounds between evaluations; 0: only after the last round
    last: tuple[str, ...] = ()  # more evaluators, for the last round alone
    targets: tuple[Share, ...] = ()  # accuracies to reach: rounds and bytes to each are reported
    stop_at_target: bool = False  # end the run at the highest target
    metric: str = "accuracy"  # what the targets are about
    evaluators: tuple[str, ...] = ("accuracy", "personal")


@dataclass(frozen=True)
class Checkpoint:
    """The `[checkpoint]` table."""

    every: Count = 10  # rounds between checkpoints; 0: only after the last round
    keep: PositiveCount = 2


@dataclass(frozen=True)
class RecordSettings:
    """The `[record]` table."""

    tensorboard: bool = False
    embedding: Annotated[int, Ge(0), Le(5000)] = 0  # samples in `embedding.npz`; 0: no file
