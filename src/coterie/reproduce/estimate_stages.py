"""How long the rounds of a method take that has rounds on the server alone, stage by stage.

One client with few samples, and then the same with more, goes once through all stages. A round
takes a + b n: n are the samples of a client, on the server those of all clients together.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.core import seeds
from coterie.core.task import METHOD, Reply, Task
from coterie.data.partition import Partition
from coterie.engine.loop import rounds_of
from coterie.engine.site import Site
from coterie.experiment.prepare import Experiment
from coterie.kit.context import ServerContext

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
    shares, parts = experiment.partition, experiment.parts
    shifts = {client: shares.shifts[client]} if client in shares.shifts else {}
    alone = Partition({client: shares.train[client][:samples]}, {}, (), shifts)
    folder.mkdir()
    site = Site(replace(experiment.spec, folder=str(folder)), alone)
    method, config = parts.method, experiment.config
    with seeds.scoped(seeds.torch_seed(config.run.seed, "start", 0)):
        server = method.init(parts.nets(METHOD))
    seconds: dict[str, float] = {}
    for stage, place in rounds_of(method.stages(config.run.rounds), 1, config.run.seed):
        if stage.name in seconds:
            continue
        replies: list[Reply] = []
        if stage.cohort != ALONE:
            down = method.broadcast(server, place)
            task = Task("update", client, place, down, method.address(server, place, client))
            replies.append(site.run(task))
            if (error := replies[0].error) is not None:
                return f"cannot be estimated: {error.reason}"
        ctx = ServerContext(
            round=place,
            objective=parts.objective,
            local=parts.local,
            nets=parts.nets(METHOD),
            rules=method.uploads(stage.name),
            optimizer=config.server,
            spool=folder / "spool",
        )
        begin = time.perf_counter()
        with seeds.scoped(place.torch_seed()):
            server = method.server_update(ctx, server, iter(replies))
        parts.nets(METHOD).release()
        spent = time.perf_counter() - begin
        seconds[stage.name] = replies[0].seconds if replies else spent
    return seconds


def stage_seconds(experiment: Experiment, lines: Mapping[str, Line], workers: int) -> float:
    """All rounds of all stages: clients' work is shared by the workers, the server's is not."""
    config, sizes = experiment.config, experiment.partition.sizes()
    invited = max(1, int(len(sizes) * config.cohort.fraction + 1e-9)) / len(sizes)
    total = 0.0
    for stage in experiment.parts.method.stages(config.run.rounds):
        line = lines[stage.name]
        if stage.cohort == ALONE:
            total += stage.rounds * line(sum(sizes.values()))
            continue
        asked = (invited if stage.cohort == "sample" else 1.0) * (1.0 - stage.drop)
        total += stage.rounds * asked * sum(map(line, sizes.values())) / workers
    return total
