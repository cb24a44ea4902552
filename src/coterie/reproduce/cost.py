"""Counts what a method sends: the tables of papers about communication.

Nothing is trained to the end. One client with a few made-up images does one task of every stage,
with the networks of the configuration; what it receives and what it sends is counted. With P the
parameters of an upload, R the rounds in which weights are sent, n the samples of a client, d the
numbers of one view's representation and E the epochs of the server, per client

    a round       2 P                    the same weights down and up
    phase 1       2 P R
    phase 2       n d, or 2 n d with both views, or 2 n d E where they are sent for every epoch

numbers, each of `bits` bits, each bit sent `code` times (an error-correcting code of rate 1/code).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coterie.core import exact, seeds
from coterie.core.bundle import Bundle
from coterie.core.errors import ConfigError, RunFailed
from coterie.core.formatting import TextTable
from coterie.core.task import METHOD
from coterie.experiment import config as configuration
from coterie.experiment.config import Config
from coterie.experiment.prepare import given_data, make_player, prepare
from coterie.experiment.tables import Tables
from coterie.kit.networks import Nets
from coterie.kit.stages import plan_rounds
from coterie.reproduce.plan import Study
from coterie.reproduce.recipe import Cost
from coterie.reproduce.scores import NONE, CellScore, Outcome
from coterie.reproduce.tables import format_large
from coterie.reproduce.verdicts import NOT, WITHIN

CLOSE = 1.25  # a figure that is printed with one or two digits may be off by a quarter
_FEWEST = 4  # images of the client that is asked
_VIEWS = 2  # of a pair


@dataclass(frozen=True)
class Leg:
    """What one client is sent and sends in each round of a stage."""

    stage: str
    rounds: int
    down: int  # bytes
    up: int  # bytes, without representations
    parameters: int  # trained numbers among what it sends
    pair: int = 0  # numbers of one sample's pair of representations
    each: int = 0  # bytes of them, and of what goes with them

    def bytes_up(self, samples: int) -> int:
        """The number of bytes that a client with so many samples sends in a round."""
        return self.up + samples * self.each


def legs(config: Config, cost: Cost) -> list[Leg]:
    """Every stage in which clients have a part, counted on one client."""
    draw = seeds.generator(0, "cost")
    y = np.arange(max(_FEWEST, cost.classes)) % cost.classes
    x = draw.integers(0, 256, size=(len(y), *cost.shape), dtype=np.uint8)
    small = {"steps": 1, "epochs": 1, "accumulate": 1, "batch_size": len(y)}
    alone: Tables = {
        "partition": {"kind": "iid"},
        "local": small,
        "data": {"limit": 0, "holdout": 0.0},
    }
    tables = configuration.resolve(config.tables, alone)
    with TemporaryDirectory() as folder, exact.exact_arithmetic():
        given = given_data({"client": (x, y)}, (x, y), 0)
        experiment = prepare(tables, Path(folder), given)
        player, parts = make_player(experiment), experiment.parts
        nets, server, counted = parts.nets(METHOD), parts.start(), dict[str, Leg]()
        for stage, round in plan_rounds(parts.stages(METHOD), 1, config.run.seed):
            if stage.cohort == "none":
                continue
            if stage.name in counted:
                known = counted[stage.name]
                counted[stage.name] = replace(known, rounds=known.rounds + 1)
                continue
            try:
                (reply,), account = player.rehearse(stage, round, server, [0])
            except RunFailed as error:
                raise RunFailed(f"its stage {stage.name!r} cannot be counted: {error}") from error
            counted[stage.name] = _leg(stage.name, account.bytes_down, reply.up, nets, len(y))
        return list(counted.values())


def _leg(stage: str, down: int, up: Bundle, nets: Nets, samples: int) -> Leg:
    blobs = list(up.blobs.values())
    trained = sum(
        tensor.numel()
        for group, tensors in up.tensors.items()
        for name, tensor in tensors.items()
        if group in nets and name in nets.parameters(group)
    )
    heavy = sum(blob.nbytes for blob in blobs)
    numbers = sum(int(np.prod(blob.shape)) for blob in blobs if blob.dtype.startswith("float"))
    small = up.nbytes() - heavy
    return Leg(stage, 1, down, small, trained, numbers // samples, heavy // samples)


@dataclass(frozen=True)
class Count:
    """How many numbers one method sends, per client."""

    parameters: int  # P
    rounds: int  # R
    representations: int  # n d
    epochs: int  # E

    @classmethod
    def of(cls, stages: Sequence[Leg], samples: int, epochs: int) -> "Count":
        """Add up the legs of a client with so many samples."""
        trained = [leg for leg in stages if leg.parameters]
        pair = sum(leg.pair for leg in stages)
        return cls(
            max((leg.parameters for leg in trained), default=0),
            sum(leg.rounds for leg in trained),
            samples * pair // _VIEWS,
            epochs,
        )

    @property
    def training(self) -> int:
        """How many numbers are sent in phase 1."""
        return 2 * self.parameters * self.rounds


Quantity = Callable[[Count, Cost], int]
QUANTITIES: Mapping[str, Quantity] = {
    "parameters": lambda c, by: c.parameters,
    "round_bits": lambda c, by: 2 * c.parameters * by.sent,
    "training_bits": lambda c, by: c.training * by.sent,
    "representations": lambda c, by: c.representations,
    "upload_bits": lambda c, by: c.representations * by.sent,
    "pair_bits": lambda c, by: _VIEWS * c.representations * by.sent,
    "total_bits": lambda c, by: by.clients * (c.training + c.representations) * by.sent,
    "total_pair_bits": lambda c, by: (
        by.clients * (c.training + _VIEWS * c.representations) * by.sent
    ),
    "total_epoch_bits": lambda c, by: (
        by.clients * (c.training + _VIEWS * c.epochs * c.representations) * by.sent
    ),
}


def count_study(study: Study) -> Outcome:
    """Count what the methods of a study send, beside the paper's numbers."""
    by = study.recipe.cost
    for cell in study.cells:
        _check_quantity(study, cell.metric)
    cells: dict[tuple[str, str], CellScore] = {}
    stages: dict[str, list[Leg]] = {}
    for cell in study.cells:
        row, column = cell.row, cell.column.name
        config = study.config(cell, cell.points[0], 0)
        if row.name not in stages:
            stages[row.name] = legs(config, by)
        count = Count.of(stages[row.name], by.samples, config.run.rounds)
        value, printed = float(QUANTITIES[cell.metric](count, by)), row.value.get(column)
        cells[row.name, column] = CellScore(
            row.name,
            column,
            seeds=1,
            values=(value,),
            mean=value,
            paper=printed,
            verdict=judge_printed(value, printed),
        )
    outcome = Outcome(study, 0, 0, cells)
    return replace(outcome, tables=tuple(_build_tables(outcome, stages)))


def _check_quantity(study: Study, metric: str) -> None:
    if metric not in QUANTITIES:
        raise ConfigError(
            f"{study.recipe.source}: metric = {metric!r} is no quantity of measure = 'cost'; there "
            f"are: {', '.join(QUANTITIES)}"
        )


def judge_printed(value: float, printed: float | None) -> str:
    """Say whether a printed figure follows from the definitions; if not, how far off it is."""
    if printed is None:
        return NONE
    if value == printed or (printed > 0 and max(value / printed, printed / value) <= CLOSE):
        return WITHIN
    if value <= 0 or printed <= 0:
        return NOT
    times, word = (value / printed, "little") if value > printed else (printed / value, "much")
    return f"{NOT}: printed {times:.3g} times too {word}"


def _build_tables(outcome: Outcome, stages: Mapping[str, Sequence[Leg]]) -> Iterator[TextTable]:
    study, by = outcome.study, outcome.study.recipe.cost
    rows = [row.name for row in study.rows]
    compared, uncoded = [], []
    for column in study.columns:
        scores = [outcome.cell(row, column.name) for row in rows]
        values = [(_format(s.mean), _format(s.paper), s.verdict) for s in scores]
        compared.append([column.name, *(text for texts in values for text in texts)])
        if (column.metric or study.recipe.metric).endswith("_bits"):
            uncoded.append([column.name, *(_format(s.mean, by.code) for s in scores)])
    head = ["", *(text for row in rows for text in (row, f"{row}, paper", "verdict"))]
    yield TextTable(f"{by.bits} bits a number, each sent {by.code} times", head, compared)
    if by.code > 1:
        yield TextTable("Without the error-correcting code", ["", *rows], uncoded)
    head = ["", "stage", "rounds", "bytes down a round", "bytes up a round", "bytes of all clients"]
    lines = []
    for row in rows:
        for leg in stages.get(row, ()):
            up = leg.bytes_up(by.samples)
            whole = by.clients * leg.rounds * (leg.down + up)
            numbers = [str(leg.rounds), *(f"{n:,}" for n in (leg.down, up, whole))]
            lines.append([row, leg.stage, *numbers])
    yield TextTable("As Coterie sends it", head, lines)


def _format(value: float | None, divisor: int = 1) -> str:
    return NONE if value is None else format_large(value / divisor)
