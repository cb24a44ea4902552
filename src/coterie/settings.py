"""The tables of a configuration that belong to no other part of the package."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from coterie.engine.measure import EvaluateSettings
from coterie.kit.fields import Count, NonNegative, PositiveCount, Share


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
    augment: str = "none"
    holdout: Share = 0.0  # a share of every class of the training samples that is set aside first
    limit: Count = 0  # a seeded, class-balanced subset of so many training samples; 0: all
    imbalance: Annotated[float, Ge(1.0)] = 1.0  # a long tail: most to fewest samples of a class
    resize: Count = 0  # image files: shorter side to so many pixels, centre cut out; 0: as they are


@dataclass(frozen=True)
class ExecutorSettings:
    """The `[executor]` table: where tasks run. It never changes a result."""

    kind: Literal["serial", "processes"] = "processes"
    workers: Count = 0  # 0: one per core
    devices: tuple[str, ...] = ()  # shared round-robin by the workers; empty: run.device
    timeout: NonNegative = 0.0  # seconds a client may take; 0: no limit


@dataclass(frozen=True)
class EvaluateTable(EvaluateSettings):
    """The `[evaluate]` table; `evaluators` is written `with` there."""

    evaluators: tuple[str, ...] = ("accuracy", "personal")


@dataclass(frozen=True)
class RecordSettings:
    """The `[record]` table."""

    tensorboard: bool = False
    embedding: Annotated[int, Ge(0), Le(5000)] = 0  # samples in `embedding.npz`; 0: no file
