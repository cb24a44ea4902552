"""`table`: your own features, a CSV or Parquet file with a column of sites, or a file per site."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import quote
from coterie.data.datasets import Raw
from coterie.data.formats import locate, tables
from coterie.data.sources.sites import join_sites
from coterie.data.subset import hold_out
from coterie.data.table import TableOptions, split_by_site
from coterie.data.table_sites import LabelledTable, deal_tests, encode_sites, label_rows

TEST_FILE = True  # it reads `data.test`
_TEST = "_test"  # behind the name of a site: the file of its test rows


def files(root: str) -> tuple[Path, ...]:
    """Return the one file, or those of all sites."""
    path = _find(root)
    return (path,) if path.is_file() else tuple(_list_files(path).values())


def read(root: str, table: TableOptions) -> Raw:
    """Read and encode all rows; a fifth of every class of a site is held out without test rows."""
    path = _find(root)
    if path.is_file():
        return _read_file(path, table)
    if table.test:
        raise ConfigError(
            f"data.test = {quote(table.test)} is for one file with the rows of all sites, and "
            f"{path} is a folder; put SITE_test.csv there for each site"
        )
    if table.site:
        raise ConfigError(
            f"data.site = {quote(table.site)} is for one file with the rows of all sites, and "
            f"{path} is a folder with a file for each; leave it out"
        )
    return _encode(_read_folder(path, table), table)


def read_site(root: str, options: TableOptions) -> LabelledTable:
    """Read the rows of a single site: a file, or a folder with one and with its test rows."""
    path = _find(root)
    if path.is_file():
        return label_rows(tables.read(path), options.label)
    sites = _read_folder(path, options)
    if len(sites) > 1:
        raise DataError(
            f"{path} has the files of {len(sites)} sites, and a client is one; give it a folder "
            "with SITE.csv and SITE_test.csv, or one file"
        )
    return next(iter(sites.values()))


def _read_file(path: Path, options: TableOptions) -> Raw:
    """Read the file of all rows, and that of test rows if there is one."""
    whole, tests = tables.read(path, site=options.site), _read_tests(options)
    if not options.site:
        rows = replace(label_rows(whole, options.label), test=tests)
        return _encode({str(path): rows}, options, grouped=False)
    parts = split_by_site(whole, options.site, "data.site")
    sites = {name: label_rows(part, options.label) for name, part in parts.items()}
    if tests is not None:
        sites = deal_tests(sites, tests, options.site, "data.site")
    return _encode(sites, options)


def _read_tests(options: TableOptions) -> LabelledTable | None:
    if not options.test:
        return None
    path = locate.expand_path(options.test)
    if not path.is_file() or path.suffix.lower() not in tables.ENDINGS:
        raise DataError(f"data.test = {quote(options.test)} is no file .csv or .parquet; give one")
    return label_rows(tables.read(path, site=options.site), options.label)


def _find(root: str) -> Path:
    """Find the folder, or the file."""
    path = locate.expand_path(root)
    if root and path.is_file() and path.suffix.lower() not in tables.ENDINGS:
        raise DataError(f"{path} is of no known kind; give a file .csv or .parquet, or a folder")
    if root and path.is_file():
        return path
    return locate.require_own("table", root, example="FILE.csv, or a folder with one per site")


def _list_files(folder: Path) -> dict[str, Path]:
    """List the files of a folder by their names without the ending, in the order of the names."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in tables.ENDINGS and not path.name.startswith("."):
            if path.stem in found:
                raise DataError(f"{path} and {found[path.stem]} are of the same site; remove one")
            found[path.stem] = path
    if not found:
        raise DataError(f"{folder} contains no file .csv or .parquet; put one per site there")
    return {name: found[name] for name in locate.sort_names(found)}


def _read_folder(folder: Path, options: TableOptions) -> dict[str, LabelledTable]:
    """Read the tables of a folder: SITE.csv, and SITE_test.csv where a site has test rows."""
    paths, sites = _list_files(folder), dict[str, LabelledTable]()
    for name, path in paths.items():
        if name.endswith(_TEST) and name.removesuffix(_TEST) in paths:
            continue
        site = label_rows(tables.read(path, f"site {name!r}"), options.label)
        if (apart := paths.get(f"{name}{_TEST}")) is not None:
            rows = tables.read(apart, f"site {name!r} ({apart.name})")
            site = LabelledTable(site.table, site.y, label_rows(rows, options.label))
        sites[name] = site
    return sites


def _encode(sites: Mapping[str, LabelledTable], options: TableOptions, grouped: bool = True) -> Raw:
    """Encode the tables; without groups it is one of which nobody knows whose rows they are."""
    if not grouped and options.standardise == "site":
        raise ConfigError(
            "data.standardise = 'site' needs sites: name their column with data.site, or give a "
            "folder with a file for each"
        )
    encoded = encode_sites(sites, options, _hold_out)
    named = {f"site {name!r}": part for name, part in encoded.parts.items()}
    raw = join_sites(sites, named) if grouped else next(iter(named.values()))
    return encoded.describe(raw)


def _hold_out(index: int, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return hold_out(labels)
