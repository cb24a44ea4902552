"""Says in sentences how rows of runs compare, no more surely than the runs allow."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from coterie.core.formatting import counted, list_first
from coterie.report.rows import Member, RunRow
from coterie.report.spread import gap, make_spread
from coterie.report.tables import describe_trouble
from coterie.report.words import name_metric

_FEW = 5  # seeds below which a difference is a hint at most
_MANY = 5  # rows from which on the best one is likely to be lucky
_EQUAL = 1e-9
Finals = Mapping[str, Mapping[int, float]]  # by row, then by seed


def list_finals(rows: Sequence[RunRow], metric: str) -> dict[str, dict[int, float]]:
    """List the final values of the rows that measured a metric, by seed.

    Rows without a finished run are compared only where no row has one.
    """
    measured = [(row, values) for row in rows if (values := row.list_finals(metric))]
    finished = [(row, values) for row, values in measured if row.finished]
    return {row.name: values for row, values in finished or measured}


def list_data(rows: Sequence[RunRow]) -> dict[str, list[str]]:
    """List the data sets, each with the names of its rows."""
    data: dict[str, list[str]] = {}
    for row in rows:
        for run in row.counted.values():
            names = data.setdefault(run.partition.dataset, [])
            if row.name not in names:
                names.append(row.name)
    return data


def describe_outcome(rows: Sequence[RunRow], metric: str) -> str:
    """Say which row is best at the end, by how much, and whether that is beyond the spread."""
    finals, name = list_finals(rows, metric), name_metric(metric)
    if not finals:
        return "Nothing was measured on test data."
    soon = "" if any(row.finished for row in rows if row.name in finals) else "So far "
    if len(list_data([row for row in rows if row.name in finals])) > 1:
        return f"The rows are on different data, so no {name} is compared here."
    ranked = sorted(finals, key=lambda row: -fmean(finals[row].values()))
    best, first = ranked[0], next(iter(finals))
    spread = make_spread(list(finals[best].values()))
    over = f" on average over {counted(spread.runs, 'seed')}" if spread.runs > 1 else ""
    value = f"{spread.mean:.4f}{over}"
    if len(finals) == 1:
        apart = f", with a standard deviation of {spread.std:.4f}" if spread.std is not None else ""
        return f"{best} ends with {name} {value}{apart}; there is no other row to compare it with."
    other = first if best != first else ranked[1]
    role = "the next" if other != first else "the first row"
    role = role if first == rows[0].name else role.replace("the first row", "the first row with it")
    difference = _describe_difference(best, finals[best], f"{other}, {role}", finals[other])
    when = "at the end" if not soon else "of the last rounds"
    text = f"{soon}{best} has the highest {name} {when}, {value}. {difference}"
    if len(finals) >= _MANY:
        text += f" As the best of {len(finals):,} rows it may also be the luckiest."
    return text


def _describe_difference(
    best: str, ours: Mapping[int, float], other: str, theirs: Mapping[int, float]
) -> str:
    """Say how far the best row is from another, and what that is worth."""
    common = sorted(ours.keys() & theirs.keys())
    difference, apart = gap(ours, theirs)
    if abs(difference) <= _EQUAL:
        return f"{other}, has the same."
    more = "more" if difference > 0 else "less"
    by_seed = " by seed" if len(common) > 1 else ""
    text = f"That is {abs(difference):.4f} {more}{by_seed} than {other}"
    if not common:
        return (
            f"{text}, but the two have no seed in common: they also differ in how data are dealt."
        )
    if len(common) == 1:
        return f"{text}, on one seed: how much another seed would change that is not known."
    assert apart is not None  # there are two seeds or more
    ahead = sum(ours[seed] > theirs[seed] for seed in common)
    won = f"higher on {ahead} of {len(common)} seeds"
    if difference <= apart:
        return (
            f"{text}, which is within the spread: the difference varies by {apart:.4f} (standard "
            f"deviation) from seed to seed, {won}. These runs do not show that {best} is better."
        )
    few = f" With {len(common)} seeds this is a hint, no proof." if len(common) < _FEW else ""
    return (
        f"{text}, beyond the spread: the difference varies by {apart:.4f} (standard deviation) "
        f"from seed to seed, {won}.{few}"
    )


def list_caveats(rows: Sequence[RunRow]) -> Iterator[str]:
    """List what makes rows hard to compare: other data, divisions, lengths, metrics."""
    data = list_data(rows)
    if len(data) > 1:
        parts = (f"{name}: {list_first(names)}" for name, names in data.items())
        yield f"The rows are on different data ({'; '.join(parts)}); their values do not compare."
    elif odd := _list_divided(rows):
        yield (
            f"On the same seed the samples are divided otherwise than in {rows[0].name}: "
            f"{list_first(odd)}."
        )
    metrics: dict[str, list[str]] = {}
    for row in rows:
        if row.metric:
            metrics.setdefault(row.metric, []).append(row.name)
    if len(metrics) > 1:
        parts = (f"{name_metric(name)}: {list_first(names)}" for name, names in metrics.items())
        yield f"The rows are judged by different metrics ({'; '.join(parts)})."
    lengths = {len(run.history) for row in rows if row.finished for run in row.counted.values()}
    if len(lengths) > 1:
        listed = f"{min(lengths):,} to {max(lengths):,}"
        yield f"Finished runs have different numbers of rounds, {listed}: compare the curves."


def _list_divided(rows: Sequence[RunRow]) -> list[str]:
    """List the rows whose clients hold other samples than those of the first row, by seed."""
    if not rows:
        return []
    usual = {seed: run.partition.digest for seed, run in rows[0].counted.items()}
    return [
        row.name
        for row in rows[1:]
        if any(
            run.partition.digest != usual.get(seed, run.partition.digest)
            for seed, run in row.counted.items()
        )
    ]


def list_warnings(rows: Sequence[RunRow]) -> Iterator[tuple[str, str, str]]:
    """List what went wrong, by row and run: the row, the run, and what it is."""
    for row in rows:
        for member in row.members:
            for text in _list_troubles(row, member):
                yield row.name, f"seed {member.seed}", text
        for copy in row.set_aside:
            yield row.name, f"seed {copy.seed}", f"{copy.folder} is the same run; it counts once"


def _list_troubles(row: RunRow, member: Member) -> Iterator[str]:
    if member.failure:
        yield f"failed: {member.failure}"
    if member.run is None:
        return
    if not member.finished and not member.failure:
        asked = member.run.table("run").get("rounds", "?")
        left = "not counted" if row.finished else "counted as far as it is"
        yield f"unfinished, {len(member.run.history):,} of {asked} rounds: it is {left}"
    if trouble := describe_trouble(member.run.history):
        yield trouble
    yield from member.run.notes
