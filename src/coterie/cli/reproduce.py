"""`coterie reproduce`: run the table of a paper again, and compare with its numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.options import Debug
from coterie.core.errors import ConfigError
from coterie.core.formatting import align_columns

if TYPE_CHECKING:
    from coterie.engine.record import Recorder
    from coterie.reproduce.plan import Study
    from coterie.reproduce.runs import Trial


def reproduce(
    recipe: Annotated[
        str | None, typer.Argument(help="A name of `coterie list recipes`, or a .toml file.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="How much of it is run: paper, laptop or smoke.")
    ] = "laptop",
    out: Annotated[
        Path, typer.Option(help="Where runs and outcomes are kept; nothing there is run again.")
    ] = Path("runs/reproduce"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs per row, instead of the recipe's numbers.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Run these columns alone, e.g. 'one,another'.")
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="Run these rows alone, and the reference.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume runs that were stopped.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run and how long it takes.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run the table of a paper again and compare: values, rounds to a target, times, claims.

    Without a recipe, list them.
    """
    if recipe is None:
        print_recipes()
        return

    from coterie.reproduce import recipe as recipes
    from coterie.reproduce.page import write_outcome
    from coterie.reproduce.plan import make_study, select
    from coterie.reproduce.runs import raise_failures, run_study
    from coterie.reproduce.tables import to_text
    from coterie.reproduce.verdicts import conclude

    study = make_study(recipes.load(recipe), scale, seeds=seeds)
    study = select(study, rows or (), columns or (), out)
    if study.recipe.measure == "cost":
        count_costs(study, out, dry_run)
        return
    if dry_run:
        from coterie.reproduce.estimate import describe

        for line in describe(study, out):
            typer.echo(line)
        return
    for line in study.left_out:
        typer.echo(line)
    if not study.cells:
        raise ConfigError(f"nothing of {recipe} can be run here at the {scale} scale")
    scores, failures = run_study(
        study,
        out,
        resume,
        renew=lambda scores: write_outcome(conclude(scores), out),
        say=typer.echo,
        watch=show_progress,
    )
    typer.echo(f"\n{to_text(conclude(scores))}")
    if study.recipe.features is not None:
        from coterie.reproduce.features import write_features

        typer.echo(write_features(scores, study.recipe.features, out / study.folder))
    typer.echo(f"kept in {out / study.folder}")
    raise_failures(failures, scores.finished + len(failures))


def count_costs(study: "Study", out: Path, dry_run: bool) -> None:
    """Print and write a table of what methods send: it is counted, and nothing is run."""
    from coterie.reproduce.cost import count_study
    from coterie.reproduce.page import write_outcome
    from coterie.reproduce.tables import to_text

    if dry_run:
        typer.echo("nothing is run: what is sent is counted, in seconds")
        return
    outcome = count_study(study)
    folder = write_outcome(outcome, out)
    typer.echo(f"{to_text(outcome)}\nkept in {folder}")


@contextmanager
def show_progress(trial: "Trial") -> Iterator[Sequence["Recorder"]]:
    """Show a run's progress live on a terminal, nothing elsewhere."""
    from coterie.cli.progress import Display

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        yield ()
        return
    with Display(console, [trial.name]) as display:
        yield [display]


def print_recipes() -> None:
    """Print the recipes with a line about each."""
    from coterie.cli.listing import entries

    lines = [
        (name, line.removeprefix(f"coterie reproduce {name}").strip())
        for name, line in entries("recipes").items()
    ]
    typer.echo(align_columns(lines) if lines else "there are no recipes")
