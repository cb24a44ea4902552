"""`coterie report`: the page of one run anew, or one page for many runs."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Debug
from coterie.core import paths
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.formatting import counted, quote

_RUNS = typer.Argument(
    metavar="RUN...", help="Directories of runs, finished or not, or folders that hold them."
)
_OUT = typer.Option(
    metavar="FILE",
    help="The page. Default: report.html in the directory of one run, comparison.html in the "
    "folder that holds all of several runs.",
)
_DEPTH = 3  # folders below a folder that are searched for runs
_MOST = 10_000  # runs of one page


def report(
    runs: Annotated[list[Path], _RUNS],
    out: Annotated[Path | None, _OUT] = None,
    debug: Debug = False,
) -> None:
    """Write the page of a run anew, or one page that compares several runs.

    Runs whose configurations differ in the seed alone are one row; rows are compared with the
    first one, seed by seed.
    """
    named = [folder for path in runs for folder in find_runs(path)]
    folders = list({folder.resolve(): folder for folder in reversed(named)}.values())[::-1]
    if len(folders) > _MOST:
        raise ConfigError(f"these are {len(folders):,} runs, and a page has at most {_MOST:,}")
    if len(folders) == 1:
        typer.echo(_write_one(folders[0], out))
        return
    shared = Path(os.path.commonpath([folder.resolve() for folder in folders]))
    for line in _write_many(folders, out or _shorten(shared) / "comparison.html", runs):
        typer.echo(line)


def find_runs(path: Path) -> list[Path]:
    """List the run directories that a path names: itself, or those below it."""
    problem = paths.find_problem(path)
    if problem != paths.FOLDER:
        raise ConfigError(
            f"RUN {quote(str(path))} {problem or 'is a file'}; name the directory of a run"
        )
    folders = [path] if _is_run(path) else sorted(_search(path, _DEPTH))
    if not folders:
        raise ConfigError(f"RUN {quote(str(path))} is no run directory, and holds none")
    return folders


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and any(
        (folder / name).exists() for name in ("metrics.jsonl", "partition.json")
    )


def _search(folder: Path, depth: int) -> Iterator[Path]:
    """Search folders for runs; links and hidden folders are not followed."""
    try:
        below = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise ConfigError(f"cannot list {folder}: {error.strerror}") from error
    for entry in below:
        path = folder / entry.name
        if _is_run(path):
            yield path
        elif depth > 1 and not entry.name.startswith("."):
            yield from _search(path, depth - 1)


def _write_one(run: Path, out: Path | None) -> str:
    from coterie.report.page import SEAL, marks_end, write_report

    finished = marks_end(run)
    page = out or run / ("report.html" if finished else "progress.html")
    if not finished and page.absolute() == (run / "report.html").absolute():
        raise ConfigError(
            f"--out {page}: this page marks a finished run, and {run} is not finished"
        )
    _check_page(page, SEAL)
    write_report(run, page, finished=finished, remedy="; choose another --out")
    return f"page {page}" if finished else f"page {page} (the run is not finished)"


def _write_many(folders: Sequence[Path], page: Path, asked: Sequence[Path]) -> Iterator[str]:
    from coterie.report.comparison_page import MARK, write_comparison
    from coterie.report.rows import group_runs, read_member

    _check_page(page, MARK.encode())
    members = [read_member(folder) for folder in folders]
    broken = [member for member in members if member.run is None]
    if len(broken) == len(members):
        reason = f"none of {len(members):,} runs can be read; {broken[0].failure}"
        raise CheckpointError(reason)
    rows = group_runs(members)
    command = ["coterie", "report", *map(str, asked), "--out", str(page)]
    write_comparison(rows, page, shlex.join(command))
    yield from (f"left out: {member.failure}" for member in broken)
    yield f"{counted(len(members), 'run')} in {counted(len(rows), 'row')}: page {page}"


def _check_page(page: Path, mark: bytes) -> None:
    """Refuse to replace a file that is no page of this kind."""
    problem = paths.find_problem(page)
    if problem == paths.ABSENT:
        if why := paths.find_unwritable(page.parent, len(os.fsencode(page.name)) + 20):
            raise ConfigError(f"--out {quote(str(page))}: its folder {why}; choose another")
    elif problem:
        raise ConfigError(f"--out {quote(str(page))} {problem}; name a file, e.g. page.html")
    elif not _has_mark(page, mark):
        raise ConfigError(f"--out {page} is another file, and stays as it is; choose another")


def _has_mark(page: Path, mark: bytes) -> bool:
    try:
        return mark in page.read_bytes()
    except OSError:
        return False


def _shorten(folder: Path) -> Path:
    """Write a folder as seen from here, where it is below; never the root of all folders."""
    here = Path.cwd()
    if folder == folder.parent:
        return Path()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
