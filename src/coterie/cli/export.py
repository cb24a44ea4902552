"""`coterie export`: write a trained network to a file for other software."""

import re
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Client, Debug, Run, Which, check_which
from coterie.core.formatting import format_bytes

_WHAT = typer.Option(
    metavar="WHAT", help="model, encoder (the backbone) or personal (needs --client)."
)
_FORMAT = typer.Option(
    metavar="FORMAT", help="safetensors, pt2 or onnx. Default: that of --out, else safetensors."
)
_OUT = typer.Option(metavar="FILE", help="The file. Default: RUN/export/WHAT[-CLIENT].FORMAT.")


def export(
    run: Run,
    what: Annotated[str, _WHAT] = "model",
    client: Client = None,
    which: Which = "last",
    format: Annotated[str | None, _FORMAT] = None,
    out: Annotated[Path | None, _OUT] = None,
    debug: Debug = False,
) -> None:
    """Write a trained network to a file: bare weights, or a program with its normalisation."""
    from coterie.experiment.export import check_choice, choose_format
    from coterie.experiment.model_file import read_model_file

    checked = check_which(which)
    chosen = choose_format(out or "", format or ("safetensors" if out is None else None))
    check_choice(what, client, which, read_model_file(run).clients)
    if out is None:
        name = "-".join(part for part in (what, which.replace("last", ""), client) if part)
        out = run / "export" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.{chosen}"

    import coterie  # from here on torch is imported, which takes seconds
    from coterie.experiment.export import export as write

    write(coterie.load(run), out, what=what, client=client, which=checked, format=chosen)
    typer.echo(f"{what} -> {out} ({format_bytes(out.stat().st_size)})")
