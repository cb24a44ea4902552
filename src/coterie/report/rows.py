"""Groups runs into rows: runs of one row differ in their seed alone."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.formatting import shorten_middle
from coterie.core.settings import WITHOUT_EFFECT
from coterie.report import curves, words
from coterie.report.page import marks_end
from coterie.report.read import Run, read_run
from coterie.report.tables import flatten

_SEED = "run.seed"
_NAME = 80  # characters of a row's name


@dataclass(frozen=True)
class Member:
    """One run of a row."""

    folder: Path
    config: Mapping[str, Any]
    run: Run | None = None  # None: it cannot be read
    finished: bool = True
    failure: str = ""  # why it failed, or cannot be read

    @property
    def seed(self) -> int:
        """The seed of the run; 0 where its configuration has none."""
        seed = _table(self.config, "run").get("seed", 0)
        return seed if isinstance(seed, int) else 0


@dataclass(frozen=True)
class RunRow:
    """Runs of one method or setting, over seeds."""

    name: str
    members: tuple[Member, ...]
    set_aside: tuple[Member, ...] = ()  # the same runs in other folders

    @cached_property
    def counted(self) -> dict[int, Run]:
        """The runs that tables and curves count, by seed.

        These are the finished ones; where none is, all as far as they are.
        """
        readable = [m for m in self.members if m.run is not None]
        done = [m for m in readable if m.finished and not m.failure]
        return {m.seed: m.run for m in done or readable if m.run is not None}

    @property
    def finished(self) -> bool:
        """Whether the runs that are counted are finished."""
        return any(m.finished and not m.failure and m.run is not None for m in self.members)

    @property
    def method(self) -> str:
        """The method with its objective, in words."""
        return _name_method(self.members[0])

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, but for the seed."""
        return self.members[0].config

    @cached_property
    def metric(self) -> str:
        """The metric that its runs are judged by; empty where no run can be read."""
        run = next(iter(self.counted.values()), None)
        if run is None:
            return ""
        wanted = str(run.table("evaluate").get("metric", "accuracy"))
        return curves.choose_metric(run.history, wanted)

    def list_finals(self, metric: str) -> dict[int, float]:
        """List the last measured value of a metric by seed."""
        last = {
            seed: next(
                (e.metrics[metric] for e in reversed(run.history) if metric in e.metrics), None
            )
            for seed, run in self.counted.items()
        }
        return {seed: value for seed, value in last.items() if value is not None}


def read_member(folder: Path, failure: str = "", config: Mapping[str, Any] | None = None) -> Member:
    """Read a run directory; one that cannot be read keeps the reason, and `config` if given."""
    finished = marks_end(folder)
    try:
        run = read_run(folder)
        return Member(folder, run.config, _slim(run), finished, failure)
    except CoterieError as error:
        config = config or _read_config(folder)
        return Member(folder, config, None, finished, failure or str(error))


def _slim(run: Run) -> Run:
    """Drop what no page of many runs shows: of hundreds of runs it would fill the memory."""
    last = max((at for at, event in enumerate(run.history) if event.clients), default=-1)
    history = (
        replace(
            event,
            clients=event.clients if at == last else {},
            confusion=(),
            client_confusion={},
            recall={},
            digest="",
            states="",
        )
        for at, event in enumerate(run.history)
    )
    return replace(run, history=tuple(history))


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def group_runs(members: Iterable[Member]) -> list[RunRow]:
    """Group runs whose configurations differ in the seed alone, and name the groups.

    The same configuration and seed in several folders is one run, and counts once: a second
    copy would make the spread look smaller than it is.
    """
    groups: dict[str, dict[int, list[Member]]] = {}
    for member in members:
        key = json.dumps(list_keys(member.config)) if member.config else str(member.folder)
        groups.setdefault(key, {}).setdefault(member.seed, []).append(member)
    chosen = [[_rank(same) for same in seeds.values()] for seeds in groups.values()]
    names = name_rows([same[0][0] for same in chosen])
    return [
        RunRow(name, tuple(same[0] for same in row), tuple(m for same in row for m in same[1:]))
        for name, row in zip(names, chosen, strict=True)
    ]


def _rank(same: Sequence[Member]) -> list[Member]:
    """Order the folders of one run: readable and finished first, then by rounds."""
    rounds = {id(m): len(m.run.history) if m.run else 0 for m in same}
    return sorted(same, key=lambda m: (not m.finished, -rounds[id(m)]))


def list_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """List the keys of a configuration that can change a result, with their values, in order."""
    kept = {name: table for name, table in config.items() if name not in WITHOUT_EFFECT}
    return dict(sorted((key, text) for key, text in flatten(kept) if key != _SEED))


def list_differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """List the keys in which configurations differ, with a value for each; "" where it has none."""
    keys = [list_keys(config) for config in configs]
    names = sorted({name for some in keys for name in some}, key=_order)
    rows = [(name, [some.get(name, "") for some in keys]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _order(key: str) -> tuple[bool, str]:
    return not key.startswith(("method.name", "objective.name")), key


def name_rows(firsts: Sequence[Member]) -> list[str]:
    """Name rows by what differs between them: the method first, then keys with their values."""
    heads = [_name_method(member) for member in firsts]
    shown = len({*heads}) > 1 or len(heads) == 1
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for head, member in zip(heads, firsts, strict=True):
        alike.setdefault(head, []).append(member.config)
    differing = {head: [key for key, _ in list_differences(same)] for head, same in alike.items()}
    names, taken = list[str](), dict[str, int]()
    for head, member in zip(heads, firsts, strict=True):
        own = list_keys(member.config)
        settings = [f"{key}={own[key]}" for key in differing[head] if key in own]
        parts = [head] if shown or not settings else []
        name = shorten_middle(" ".join([*parts, *settings]), _NAME)
        taken[name] = taken.get(name, 0) + 1
        names.append(f"{name} ({taken[name]})" if taken[name] > 1 else name)
    return names


def _name_method(member: Member) -> str:
    if not member.config:
        return member.folder.name
    method, objective = (
        str(_table(member.config, table).get("name", "")) for table in ("method", "objective")
    )
    return words.name_method(method, objective) or member.folder.name


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}
