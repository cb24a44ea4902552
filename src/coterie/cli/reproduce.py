"""`coterie reproduce`: run the table of a paper again, and compare with its numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.compare import check_seeds
from coterie.cli.listing import entries
from coterie.cli.options import Debug, check_folder
from coterie.cli.terminal import echo_table, find_width
from coterie.core.errors import ConfigError

if TYPE_CHECKING:
    from coterie.engine.record import Recorder
    from coterie.reproduce.plan import Study
    from coterie.reproduce.runs import Trial

_NUMBERS = {1: "one", 2: "two", 3: "three"}


def complete_recipe(incomplete: str) -> list[str]:
    """List the shipped recipes that begin so, for the completion of a shell."""
    return [name for name in entries("recipes") if name.startswith(incomplete)]


_RECIPE = typer.Argument(
    metavar="RECIPE",
    help="A name of `coterie list recipes`, or a .toml file.",
    autocompletion=complete_recipe,
)
_ROOT = typer.Argument(metavar="[data.root=DIR]", help="The folder of the data.")
_SCALE = typer.Option(
    metavar="SCALE",
    help="How much of it is run: paper, laptop, or smoke (digits, two rounds: checks the wiring).",
)
_OUT = typer.Option(
    metavar="DIR", help="Where runs and outcomes are kept; nothing there is run again."
)
_SEEDS = typer.Option(min=1, metavar="N", help="Runs per row, instead of the recipe's numbers.")
_FIRST_SEED = typer.Option(
    min=0, metavar="N", help="Count seeds from here on: with 1 the second is run alone."
)
_COLUMNS = typer.Option(metavar="NAMES", help="Run these columns alone, e.g. 'one,another'.")
_ROWS = typer.Option(metavar="NAMES", help="Run these rows alone, and the reference.")
_NO_GRIDS = typer.Option("--no-grids", help="Tune nothing: every row has its own setting.")
_RESUME = typer.Option("--resume", help="Resume runs that were stopped.")
_DRY_RUN = typer.Option("--dry-run", help="Say what would be run and how long it takes.")


def reproduce(
    recipe: Annotated[str | None, _RECIPE] = None,
    changes: Annotated[list[str] | None, _ROOT] = None,
    scale: Annotated[str, _SCALE] = "laptop",
    out: Annotated[Path, _OUT] = Path("runs/reproduce"),
    seeds: Annotated[int | None, _SEEDS] = None,
    first_seed: Annotated[int, _FIRST_SEED] = 0,
    columns: Annotated[list[str] | None, _COLUMNS] = None,
    rows: Annotated[list[str] | None, _ROWS] = None,
    no_grids: Annotated[bool, _NO_GRIDS] = False,
    resume: Annotated[bool, _RESUME] = False,
    dry_run: Annotated[bool, _DRY_RUN] = False,
    debug: Debug = False,
) -> None:
    """Run the table of a paper again and compare: values, rounds to a target, times, claims.

    Without a recipe, list them.
    """
    if recipe is None:
        lines = entries("recipes").items()
        about = [(n, line.removeprefix(f"coterie reproduce {n}").strip()) for n, line in lines]
        echo_table(about)
        return

    from coterie.core.registry import check_known
    from coterie.reproduce import recipe as recipes

    check_seeds(seeds or 1)
    check_seeds(first_seed, "--first-seed")
    check_folder(out)
    root, chosen = read_root(changes or []), recipes.load(recipe)
    check_known(f"{chosen.source}: scale", scale, chosen.scales)

    # from here on torch is imported, which takes seconds
    from coterie.reproduce.page import write_outcome
    from coterie.reproduce.plan import make_study, select
    from coterie.reproduce.runs import raise_failures, run_study
    from coterie.reproduce.tables import to_text
    from coterie.reproduce.verdicts import conclude

    grids = not no_grids
    study = make_study(chosen, scale, seeds=seeds, root=root, grids=grids, first=first_seed)
    study = select(study, rows or (), columns or (), out)
    if study.recipe.measure == "cost":
        from coterie.reproduce.cost import count_study

        if dry_run:
            typer.echo("nothing is run: what is sent is counted, in seconds")
            return
        outcome = count_study(study)
        folder = write_outcome(outcome, out)
        typer.echo(f"{to_text(outcome, find_width())}\nkept in {folder}")
        typer.echo(f"page {folder / 'report.html'}")
        return
    if scale == "smoke":
        typer.echo(describe_smoke(study))
    if dry_run:
        from coterie.reproduce.estimate import describe

        for line in describe(study, out):
            typer.echo(line)
        return
    for line in study.left_out:
        typer.echo(line)
    if not study.cells:
        raise ConfigError(f"nothing of {recipe} can be run here at the {scale} scale")
    typer.echo(describe_kept(study, out))
    scores, failures = run_study(
        study, out, resume, lambda s: write_outcome(conclude(s), out), typer.echo, show_progress
    )
    typer.echo(f"\n{to_text(conclude(scores), find_width())}")
    if study.recipe.features is not None:
        from coterie.reproduce.features import write_features

        typer.echo(write_features(scores, study.recipe.features, out / study.folder))
    typer.echo(f"kept in {out / study.folder}\npage {out / study.folder / 'report.html'}")
    raise_failures(failures, scores.finished + len(failures))


def describe_smoke(study: "Study") -> str:
    """Describe what the smallest scale runs: `digits, two rounds: checks the wiring`."""
    configs = [study.config(cell, cell.points[0], 0) for cell in study.cells]
    data = ", ".join(sorted({config.data.name for config in configs}))
    rounds = max((config.run.rounds for config in configs), default=0)
    number = _NUMBERS.get(rounds, str(rounds))
    return f"{data}, {number} round{'' if rounds == 1 else 's'}: checks the wiring"


def describe_kept(study: "Study", out: Path) -> str:
    """Describe what is finished: `3 of 8 runs are finished in /home/me/runs/reproduce/cells`."""
    from coterie.reproduce.plan import is_finished
    from coterie.reproduce.runs import list_trials
    from coterie.reproduce.scores import Scores

    finished = sum(is_finished(trial.folder) for trial in list_trials(Scores(study), out))
    return f"{finished} of {study.total} runs are finished in {(out / 'cells').resolve()}"


def read_root(changes: Sequence[str]) -> str:
    """Read `data.root=DIR`, the only key that a recipe leaves to its user."""
    from coterie.experiment.tables import parse_overrides

    tables = parse_overrides(changes)
    keys = [f"{table}.{key}" for table, values in tables.items() for key in values]
    if other := next((key for key in keys if key != "data.root"), None):
        raise ConfigError(f"reproduce takes data.root=DIR alone, and {other} is set by the recipe")
    return str(tables.get("data", {}).get("root", ""))


@contextmanager
def show_progress(trial: "Trial") -> Iterator[Sequence["Recorder"]]:
    """Show a run's progress live on a terminal, nothing elsewhere."""
    from coterie.report.progress import Display

    console = Console()
    if not console.is_terminal:
        yield ()
        return
    with Display(console, [trial.name]) as display:
        yield [display]
