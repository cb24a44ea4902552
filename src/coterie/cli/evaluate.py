"""`coterie evaluate`: measure a finished run again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Debug, Run
from coterie.core.errors import ConfigError
from coterie.core.files import replace_durably
from coterie.core.formatting import align_columns

if TYPE_CHECKING:
    from coterie.engine.record import Event

_CHANGES = typer.Argument(
    metavar="[KEY=VALUE]...",
    help="Keys of evaluate and executor; data.root=PATH, data.test=PATH if the data have moved.",
)
_OUT = typer.Option(metavar="FILE", help="Also write the metrics to this file, as JSON.")


def evaluate(
    run: Run,
    changes: Annotated[list[str] | None, _CHANGES] = None,
    out: Annotated[Path | None, _OUT] = None,
    debug: Debug = False,
) -> None:
    """Measure the models of a finished run, e.g. evaluate.with=probe; needs the run's data."""
    from coterie.experiment.model_file import read_model_file
    from coterie.experiment.tables import parse_overrides, request

    tables = parse_overrides(changes or [])
    if out is not None and out.suffix != ".json":
        raise ConfigError(f"--out {out} must end in .json")
    read_model_file(run)
    if (config := run / "config.toml").is_file():
        request(config, tables)

    # from here on torch is imported, which takes seconds
    from coterie.experiment.evaluate import evaluate as measure

    metrics = measure(run, tables, [_show_note])
    typer.echo(align_columns([(name, f"{value:.4f}") for name, value in metrics.items()]))
    if out is not None:
        text = json.dumps(dict(metrics), indent=1)
        replace_durably(out, f"{text}\n".encode(), "; choose another --out")
        typer.echo(f"written to {out}")


def _show_note(event: "Event") -> None:
    from coterie.engine.record import NoteEvent

    if isinstance(event, NoteEvent):
        typer.echo(f"note: {event.text}", err=True)
