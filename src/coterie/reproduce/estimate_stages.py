"""How long the rounds of a method take that has rounds on the server alone, stage by stage.

One client with few samples, and then the same with more, goes once through all stages. A round
takes a + b n: n are the samples of a client, on the server those of all clients together.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.core.task import METHOD, Attempt
from coterie.data.partition import Partition
from coterie.engine.cohort import Invited, count_asked
from coterie.engine.spec import Parts
from coterie.experiment.prepare import Experiment, make_player
from coterie.kit.stages import plan_rounds

FEW, MORE = 48, 144  # samples
ALONE = "none"  # the cohort of a round on the server alone


@dataclass(frozen=True)
class Line:
    """a + b n seconds."""

    start: float
    sample: float

    @classmethod
    def through(cls, few: tuple[int, float], more: tuple[int, float]) -> "Line":
        """The line through two measurements; it neither falls nor begins below zero."""
        between = more[0] - few[0]
        slope = max((more[1] - few[1]) / between, 0.0) if between else more[1] / more[0]
        return cls(max(more[1] - slope * more[0], 0.0), slope)

    def __call__(self, samples: int) -> float:
        """The seconds for so many samples."""
        return self.start + self.sample * samples


def measure_stages(experiment: Experiment, folder: Path) -> dict[str, Line] | str:
    """What a round of every stage takes, or why that cannot be told."""
    sizes = experiment.partition.sizes()
    client = sorted(sizes, key=lambda one: sizes[one])[len(sizes) // 2]
    found: list[tuple[int, dict[str, float]]] = []
    for number, wanted in enumerate((FEW, FEW, MORE)):  # the first one warms up
        once = _once(experiment, client, wanted, folder / f"estimate-{number}")
        if isinstance(once, str):
            return once
        found.append((min(wanted, sizes[client]), once))
    (few, less), (more, longer) = found[1:]
    return {name: Line.through((few, less[name]), (more, longer[name])) for name in longer}


def _once(
    experiment: Experiment, client: int, samples: int, folder: Path
) -> dict[str, float] | str:
    """The seconds of the first round of every stage, with one client of so many samples."""
    shares = experiment.partition
    shifts = {client: shares.shifts[client]} if client in shares.shifts else {}
    alone = Partition({client: shares.train[client][:samples]}, {}, (), shifts)
    folder.mkdir()
    spec = replace(experiment.spec, folder=str(folder))
    player = make_player(replace(experiment, spec=spec, partition=alone, parts=Parts(spec)))
    parts = player.parts
    server, seconds = parts.start(), dict[str, float]()
    for stage, round in plan_rounds(parts.stages(METHOD), 1, spec.seed):
        if stage.name in seconds:
            continue
        cohort = Invited() if stage.cohort == ALONE else Invited((client,))
        begin = time.perf_counter()
        played = player.round(METHOD, stage, round, server, cohort, Attempt())
        spent = time.perf_counter() - begin
        if played.server is None:
            return f"cannot be estimated: {played.replies.first_problem()}"
        server = played.server
        seconds[stage.name] = played.replies.seconds.get(client, spent)
    return seconds


def stage_seconds(experiment: Experiment, lines: Mapping[str, Line], workers: int) -> float:
    """All rounds of all stages: clients' work is shared by the workers, the server's is not."""
    fraction, sizes = experiment.config.cohort.fraction, experiment.partition.sizes()
    total = 0.0
    for stage in experiment.parts.stages(METHOD):
        line = lines[stage.name]
        if stage.cohort == ALONE:
            total += stage.rounds * line(sum(sizes.values()))
            continue
        asked = count_asked(len(sizes), stage, fraction) / len(sizes)
        total += stage.rounds * asked * sum(map(line, sizes.values())) / workers
    return total
