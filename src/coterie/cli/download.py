"""`coterie download`: download the official files of a data set."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Debug


def complete_dataset(incomplete: str) -> list[str]:
    """List the data sets to download that begin so, for the completion of a shell."""
    from coterie.data.download import REMOTES

    return [name for name in REMOTES if name.startswith(incomplete)]


_DATASET = typer.Argument(
    metavar="DATASET",
    help="One of: cifar10, cifar100, mnist, fashion-mnist.",
    autocompletion=complete_dataset,
)
_ROOT = typer.Option(metavar="DIR", help="The target folder. Default: $COTERIE_DATA, else ./data.")


def download(
    dataset: Annotated[str, _DATASET],
    root: Annotated[Path | None, _ROOT] = None,
    debug: Debug = False,
) -> None:
    """Download a data set from its official URL and check its SHA-256."""
    from coterie.data.download import fetch
    from coterie.data.formats import locate

    fetch(dataset, locate.resolve_root(str(root or "")), typer.echo)
