"""`heart`: 740 patients at four hospitals, with heart disease or without; comes with Coterie.

Of the 920 patients of UCI Heart Disease those are kept who have all of the first ten columns, as
in FLamby (du Terrail et al., NeurIPS 2022), whose split into training and test patients this is
too: a third of every hospital, stratified, by scikit-learn. Chest pain and resting ECG have no
input for their first value, and all 13 inputs are standardised.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.formatting import quote
from coterie.core.settings import Missing
from coterie.data import labels
from coterie.data.datasets import Raw
from coterie.data.formats import tables
from coterie.data.sources.sites import join_sites
from coterie.data.table import Table, TableOptions
from coterie.data.table_sites import EncodedSites, LabelledTable, encode_sites

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CLASSES = ("healthy", "disease")
INSTALLED = True  # there are no files of the user's
MISSING: Missing = "drop"  # whatever `data.missing` is by default
_FOLDER = Path(__file__).parent.parent / "heart"
_COLUMNS = 10
_CATEGORIES = ("cp", "restecg")
_DIAGNOSIS = "num"
_GAPS = (-9.0,)  # a missing value
_OPTIONS = TableOptions(categorical=_CATEGORIES, missing=MISSING)
_TRAINING = 0.66
_SEED = 43
_FEWEST = 3  # patients of a class that a stratified split needs


def files(root: str) -> tuple[Path, ...]:
    """List the files in the package."""
    return tuple(_FOLDER / f"{name}.csv" for name in HOSPITALS)


def read(root: str, table: TableOptions) -> Raw:
    """Read all hospitals; `data.standardise` may be federated, site or none."""
    encoded = encode_hospitals(table)
    return encoded.describe(join_hospitals(encoded))


def encode_hospitals(options: TableOptions) -> EncodedSites:
    """Encode the patients of every hospital; its columns are known, and cannot be chosen."""
    for key in ("label", "site", "categorical"):
        if value := getattr(options, key):
            raise ConfigError(
                f"data.{key} = {quote(value)} is for tables of your own, and the columns of the "
                "data set 'heart' are known; leave it out"
            )
    chosen = replace(_OPTIONS, standardise=options.standardise, unseen=options.unseen)
    hospitals = {name: _read(name) for name in HOSPITALS}
    return encode_sites(hospitals, chosen, _split, dummies=True, gaps=_GAPS)


def join_hospitals(encoded: EncodedSites) -> Raw:
    """Join the hospitals, with their names as groups."""
    joined = join_sites(HOSPITALS, encoded.parts)
    return replace(joined, classes=len(CLASSES), class_names=CLASSES)


def _read(name: str) -> LabelledTable:
    stored = tables.read(_FOLDER / f"{name}.csv", f"site {name!r}")
    diagnosis, rest = stored.split_off(_DIAGNOSIS, "data.label")
    columns = dict(list(rest.columns.items())[:_COLUMNS])
    table = Table(columns, rest.rows, rest.origin)
    return LabelledTable(table, labels.clean(diagnosis > 0, len(table)))


def _split(index: int, diseased: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split the patients of a hospital as FLamby does."""
    from sklearn.model_selection import train_test_split

    counts = np.unique(diseased, return_counts=True)[1]
    stratify = diseased if len(counts) > 1 and counts.min() >= _FEWEST else None
    train, test = train_test_split(
        np.arange(len(diseased)),
        test_size=1.0 - _TRAINING,
        train_size=_TRAINING,
        random_state=_SEED,
        stratify=stratify,
    )
    return np.sort(train), np.sort(test)
