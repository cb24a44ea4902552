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

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coterie.core import exact, registry, seeds
from coterie.core.bundle import Bundle
from coterie.core.errors import RunFailed
from coterie.core.formatting import TextTable
from coterie.core.task import METHOD
from coterie.experiment import config as configuration
from coterie.experiment.given import divide_sites
from coterie.experiment.prepare import make_player, prepare
from coterie.experiment.tables import Tables
from coterie.kit.networks import Nets
from coterie.kit.stages import plan_rounds
from coterie.reproduce.plan import Study
from coterie.reproduce.recipe import Cost
from coterie.reproduce.scores import NONE, CellScore, Outcome
from coterie.reproduce.tables import format_value
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
    each: int = 0  # bytes of them, with their labels


def legs(config: configuration.Config, cost: Cost) -> list[Leg]:
    """Every stage in which clients have a part, counted on one client."""
    draw = seeds.generator(0, "cost")
    y = np.arange(max(_FEWEST, cost.classes)) % cost.classes
    x = draw.integers(0, 256, size=(len(y), *cost.shape), dtype=np.uint8)
    tasks = {"steps": 1, "epochs": 1, "accumulate": 1, "batch_size": len(y)}
    data = {"limit": 0, "holdout": 0.0}
    alone: Tables = {"partition": {"kind": "iid"}, "local": tasks, "data": data}
    tables = configuration.resolve(config.tables, alone)
    with TemporaryDirectory() as folder, exact.exact_arithmetic():
        experiment = prepare(tables, Path(folder), divide_sites({"client": (x, y)}, (x, y), 0))
        player, parts = make_player(experiment), experiment.parts
        server, counted = parts.start(), list[Leg]()
        planned = plan_rounds(parts.stages(METHOD), 1, config.run.seed)
        rounds = Counter(stage.name for stage, _ in planned if stage.cohort != "none")
        for name, count in rounds.items():
            stage, round = next(pair for pair in planned if pair[0].name == name)
            try:
                (reply,), account = player.rehearse(stage, round, server, [0])
            except RunFailed as error:
                raise RunFailed(f"its stage {name!r} cannot be counted: {error}") from error
            sent = _count_upload(reply.up, parts.nets(METHOD), len(y))
            counted.append(Leg(name, count, account.bytes_down, *sent))
        return counted


def _count_upload(up: Bundle, nets: Nets, samples: int) -> tuple[int, int, int, int]:
    """Count the fields of a `Leg` from `up` on."""
    blobs = list(up.blobs.values())
    trained = sum(
        tensor.numel()
        for group, tensors in up.tensors.items()
        for name, tensor in tensors.items()
        if group in nets and name in nets.parameters(group)
    )
    heavy = sum(blob.nbytes for blob in blobs)
    numbers = sum(int(np.prod(blob.shape)) for blob in blobs if blob.dtype.startswith("float"))
    return up.nbytes() - heavy, trained, numbers // samples, heavy // samples


def count_quantities(stages: Sequence[Leg], by: Cost, epochs: int) -> dict[str, int]:
    """Compute every quantity: `..._bits` are bits as they are sent, `total_...` of all clients."""
    weights = max((leg.parameters for leg in stages), default=0)
    rounds = sum(leg.rounds for leg in stages if leg.parameters)
    view = by.samples * sum(leg.pair for leg in stages) // _VIEWS
    training, bits = 2 * weights * rounds, by.bits * by.code
    return {
        "parameters": weights,
        "round_bits": 2 * weights * bits,
        "training_bits": training * bits,
        "representations": view,
        "upload_bits": view * bits,
        "pair_bits": _VIEWS * view * bits,
        "total_bits": by.clients * (training + view) * bits,
        "total_pair_bits": by.clients * (training + _VIEWS * view) * bits,
        "total_epoch_bits": by.clients * (training + _VIEWS * epochs * view) * bits,
    }


def count_study(study: Study) -> Outcome:
    """Count what the methods of a study send, beside the paper's numbers."""
    by, source = study.recipe.cost, study.recipe.source
    cells: dict[tuple[str, str], CellScore] = {}
    stages: dict[str, list[Leg]] = {}
    for cell in study.cells:
        row, column = cell.row, cell.column.name
        config = study.config(cell, cell.points[0], 0)
        if row.name not in stages:
            stages[row.name] = legs(config, by)
        quantities = count_quantities(stages[row.name], by, config.run.rounds)
        registry.check_known(f"{source}: measure = 'cost', metric", cell.metric, quantities)
        value, paper = float(quantities[cell.metric]), row.value.get(column)
        score = CellScore(row.name, column, 1, (value,), mean=value, paper=paper)
        cells[row.name, column] = replace(score, verdict=judge_printed(value, paper))
    outcome = Outcome(study, 0, 0, cells)
    return replace(outcome, tables=tuple(_build_tables(outcome, stages)))


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
    rows, show = [row.name for row in study.rows], functools.partial(format_value, study.recipe)
    compared, uncoded = [], []
    for column in study.columns:
        scores = [outcome.cell(row, column.name) for row in rows]
        values = [(show(s.mean), show(s.paper), s.verdict) for s in scores]
        compared.append([column.name, *(text for texts in values for text in texts)])
        if (column.metric or study.recipe.metric).endswith("_bits"):
            means = [None if s.mean is None else s.mean / by.code for s in scores]
            uncoded.append([column.name, *map(show, means)])
    head = ["", *(text for row in rows for text in (row, f"{row}, paper", "verdict"))]
    yield TextTable(f"{by.bits} bits a number, each sent {by.code} times", head, compared)
    if by.code > 1:
        yield TextTable("Without the error-correcting code", ["", *rows], uncoded)
    head = ["", "stage", "rounds", "bytes down a round", "bytes up a round", "bytes of all clients"]
    lines = []
    for row in rows:
        for leg in stages.get(row, ()):
            up = leg.up + by.samples * leg.each
            whole = by.clients * leg.rounds * (leg.down + up)
            numbers = [str(leg.rounds), *(f"{n:,}" for n in (leg.down, up, whole))]
            lines.append([row, leg.stage, *numbers])
    yield TextTable("As Coterie sends it", head, lines)
