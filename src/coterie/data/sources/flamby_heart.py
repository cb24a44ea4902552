"""`flamby-heart`: `heart` as FLamby's benchmark tests it, with a test set that is scaled otherwise.

FLamby (du Terrail et al., NeurIPS 2022) standardises each hospital's patients by that hospital's
own means, also its test patients; but the pooled test set, by which its table compares methods,
by the means of all training patients together. So the server's test set differs from what the
hospitals trained on, and part of what that table shows is this difference. The hospitals' own test
sets are scaled as their training sets are. `heart` with `data.standardise = "site"` is the same
without the difference.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError
from coterie.data.checks import NOBODY
from coterie.data.datasets import Groups, Raw
from coterie.data.sources import heart
from coterie.data.table import TableOptions

INSTALLED = heart.INSTALLED
MISSING = heart.MISSING


def files(root: str) -> tuple[Path, ...]:
    """List the files in the package, and the code that reads them."""
    return (*heart.files(root), Path(heart.__file__))


def read(root: str, table: TableOptions) -> Raw:
    """Read all hospitals, with the test patients twice: for the server, and for their hospital."""
    if table.standardise != "site":
        raise ConfigError(
            f"data.standardise = {table.standardise!r}, and data.name = 'flamby-heart' has "
            "hospitals that standardise by themselves: use 'site', or data.name = 'heart'"
        )
    encoded = heart.encode_hospitals(table)
    own = heart.join_hospitals(encoded)
    pooled = heart.join_hospitals(heart.encode_hospitals(replace(table, standardise="federated")))
    assert own.groups is not None  # the hospitals
    of_server = np.full(len(pooled.y_test), NOBODY)
    joined = replace(
        own,
        x_test=np.concatenate([pooled.x_test, own.x_test]),
        y_test=np.concatenate([pooled.y_test, own.y_test]),
        groups=Groups(
            own.groups.train, np.concatenate([of_server, own.groups.test]), own.groups.names
        ),
    )
    return encoded.describe(joined)
