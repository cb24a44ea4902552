"""`coterie download`: fetch the official files of a data set."""

from pathlib import Path
from typing import Annotated

import typer


def download(
    dataset: Annotated[
        str, typer.Argument(help="One of: cifar10, cifar100, mnist, fashion-mnist.")
    ],
    root: Annotated[
        Path | None,
        typer.Option(help="The folder to put it in. Default: $COTERIE_DATA, else ./data."),
    ] = None,
) -> None:
    """Fetch a data set from its official address, checked against a pinned SHA-256."""
    from coterie.data.download import fetch
    from coterie.data.formats import locate

    fetch(dataset, locate.expand_path(str(root)) if root else locate.default_root(), typer.echo)
