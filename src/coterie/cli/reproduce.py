"""`coterie reproduce`: run the table of a paper again, and compare."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.options import Debug
from coterie.core.errors import ConfigError

if TYPE_CHECKING:
    from coterie.engine.record import Recorder
    from coterie.reproduce.plan import Plan
    from coterie.reproduce.recipe import Features
    from coterie.reproduce.run import Found, Trial


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
        int | None, typer.Option(min=1, help="Runs per row, in the place of the recipe's numbers.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Run these columns alone, e.g. 'one,another'.")
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="Run these rows alone, and the reference.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with runs that were stopped.")
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
        listed()
        return

    from coterie.reproduce import recipe as recipes
    from coterie.reproduce.book import Book
    from coterie.reproduce.narrow import narrow
    from coterie.reproduce.plan import make
    from coterie.reproduce.run import finish
    from coterie.reproduce.run import reproduce as run

    plan = make(recipes.load(recipe), scale, seeds=seeds)
    plan = narrow(plan, rows or (), columns or (), out)
    if plan.recipe.measure == "cost":
        count(plan, out, dry_run)
        return
    if dry_run:
        from coterie.reproduce.estimate import describe

        for line in describe(plan, out):
            typer.echo(line)
        return
    for line in plan.left_out:
        typer.echo(line)
    if not plan.cells:
        raise ConfigError(f"nothing of {recipe} can be run here at the {scale} scale")
    book = Book(plan, out)
    found = run(plan, out, resume, renew=book.write, say=typer.echo, watch=watched)
    typer.echo(f"\n{book.text(found)}")
    if plan.recipe.features is not None:
        typer.echo(pictured(found, plan.recipe.features, book.folder))
    typer.echo(f"kept in {book.folder}")
    finish(found)


def count(plan: "Plan", out: Path, dry_run: bool) -> None:
    """A table of what is sent: it is counted, and nothing is run."""
    from coterie.reproduce import cost
    from coterie.reproduce.book import Book

    if dry_run:
        typer.echo("nothing is run: what is sent is counted, in seconds")
        return
    book, outcome = Book(plan, out), cost.outcome(plan)
    book.keep(outcome)
    typer.echo(f"{book.told(outcome)}\nkept in {book.folder}")


def pictured(found: "Found", wanted: "Features", folder: Path) -> str:
    """The picture of representations, of the rows that were run; what it shows in a sentence."""
    from dataclasses import replace

    from coterie.reproduce import clusters, features

    run = [cell.row.name for cell in found.plan.cells]
    rows = tuple(row for row in wanted.rows if row in run)
    if not rows:
        return f"there is no picture of features: none of {', '.join(wanted.rows)} was asked for"
    write = clusters.write if wanted.of == "global" else features.write
    return write(found, replace(wanted, rows=rows), folder)


@contextmanager
def watched(trial: "Trial") -> Iterator[Sequence["Recorder"]]:
    """A live line on a terminal, nothing elsewhere."""
    from coterie.cli.progress import Display

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        yield ()
        return
    with Display(console, [trial.name]) as display:
        yield [display]


def listed() -> None:
    """Print the recipes with a line about each."""
    from coterie.cli.listing import entries

    found = entries("recipes")
    width = max(map(len, found), default=0)
    for name, line in found.items():
        typer.echo(f"{name:<{width}}  {line.removeprefix(f'coterie reproduce {name}').strip()}")
    if not found:
        typer.echo("there are no recipes")
