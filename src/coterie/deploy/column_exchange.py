"""The columns of tables, fitted on the server to what clients send of them: values and sums.

The arithmetic and its order are those of a simulation (`data.encoding`), so the bits are the same.
Sites that never train are not asked.
"""

from collections.abc import Mapping
from typing import Any

from coterie.core.errors import DataError
from coterie.core.task import ClientInfo
from coterie.data.encoding import (
    ALL,
    BySite,
    TableColumn,
    add_statistics,
    join_values,
    require_mean,
)
from coterie.data.table import TableOptions
from coterie.data.table_statistics import Numbers, find_deviation
from coterie.deploy.columns import (
    Kinds,
    TableCard,
    needs_squares,
    needs_sums,
    read_squares,
    read_sums,
)
from coterie.deploy.federation import Federation, SampleForm
from coterie.deploy.questions import Questions
from coterie.experiment.config import Config
from coterie.experiment.load_data import read_options
from coterie.experiment.settle import choose_unseen

_Statistics = Mapping[str, tuple[Numbers, Numbers]]  # mean and deviation, by column


def fit_form(
    questions: Questions, config: Config, federation: Federation, cards: Mapping[str, TableCard]
) -> SampleForm:
    """Fit the columns of a federation, and return the form of its samples.

    `DataError` if a column is of no use at any site, `Unanswered` if clients do not answer.
    """
    options = read_options(config.data)
    kinds: Kinds = {column["name"]: column["kind"] for column in federation.form.columns}
    lacking = _list_lacking(cards)
    asked = _choose_asked(options, kinds, lacking)
    sites = _list_trained(config, federation.clients)
    values, statistics = _ask(questions, options, asked, {name: cards[name] for name in sites})
    columns = []
    for name, kind in kinds.items():
        column = TableColumn(name, kind, values.get(name, ()))
        if kind == "number":
            means, deviations = _share(options, name, statistics, lacking[name])
            column = add_statistics(column, means, deviations, options.standardise, options.missing)
        columns.append(column)
    if not (width := sum(column.width for column in columns)):
        raise DataError("no column has a value in the training rows")
    plain = tuple(column.to_plain() for column in columns)
    return SampleForm("table", (width,), "float32", columns=plain)


def _list_lacking(cards: Mapping[str, TableCard]) -> dict[str, list[str]]:
    """List for each column the sites that train on no value of it."""
    tables = {site: card.by_name() for site, card in cards.items()}
    names = next(iter(tables.values()))
    return {name: [site for site, table in tables.items() if table[name].bare] for name in names}


def _choose_asked(options: TableOptions, kinds: Kinds, lacking: Mapping[str, list[str]]) -> Kinds:
    """Choose the columns to ask about: categories, and numbers whose mean over sites is used."""

    def is_asked(name: str) -> bool:
        if kinds[name] == "category":
            return True
        return needs_sums(options) and (options.standardise != "site" or bool(lacking[name]))

    return {name: kind for name, kind in kinds.items() if is_asked(name)}


def _list_trained(config: Config, clients: tuple[ClientInfo, ...]) -> list[str]:
    """List the sites that train, in the order of their numbers."""
    unseen = choose_unseen(config, clients) if config.cohort.unseen else ()
    return [info.name for info in clients if info.id not in unseen]


def _ask(
    questions: Questions, options: TableOptions, asked: Kinds, cards: Mapping[str, TableCard]
) -> tuple[dict[str, tuple[str, ...]], _Statistics]:
    """Ask for values and sums, then for squares; return values of categories, and statistics."""
    if not asked:
        return {}, {}
    head: Mapping[str, Any] = {"columns": dict(asked)}
    told = questions.ask(
        "sums",
        dict.fromkeys(cards, head),
        lambda site, answer: read_sums(answer, asked, cards[site].rows),
    )
    values, sums = dict[str, tuple[str, ...]](), {}
    for name, kind in asked.items():
        if kind == "category":
            values[name] = join_values(name, [of_site[name] for _, of_site in told.values()])
        else:
            sums[name] = [of_site[name] for of_site, _ in told.values()]
    means = {name: require_mean(name, parts) for name, parts in sums.items()}
    if not sums or not needs_squares(options):
        return values, {name: (tuple(mean.tolist()), ()) for name, mean in means.items()}
    head = {"means": {name: float(mean[0]) for name, mean in means.items()}}
    squared = questions.ask(
        "squares",
        dict.fromkeys(cards, head),
        lambda site, answer: read_squares(answer, told[site][0]),
    )
    statistics = {}
    for name, mean in means.items():
        squares = [(of_site[name],) for of_site in squared.values()]
        deviation = find_deviation(mean, sums[name], squares)
        statistics[name] = (tuple(mean.tolist()), tuple(deviation.tolist()))
    return values, statistics


def _share(
    options: TableOptions, name: str, statistics: _Statistics, lacking: list[str]
) -> tuple[BySite, BySite]:
    """Give statistics to all sites, or to those that lack their own, as others keep theirs."""
    if name not in statistics:
        return {}, {}
    mean, deviation = statistics[name]
    sites = lacking if options.standardise == "site" else [ALL]
    return dict.fromkeys(sites, mean), dict.fromkeys(sites, deviation)
