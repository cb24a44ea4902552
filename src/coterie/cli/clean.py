"""`coterie clean`: remove what only resuming needs from a finished run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import typer

from coterie.cli.options import Debug, Run
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.formatting import counted, format_bytes

_CHECKPOINTS, _SPOOL = "checkpoints", "spool"
_FOLDERS = ("clients", "blobs", _SPOOL)


def clean(run: Run, debug: Debug = False) -> None:
    """Remove checkpoints and client states of a finished run; its models and results stay."""
    from coterie.core.files import disk_errors, rename
    from coterie.engine.rundir import lock_folder
    from coterie.experiment import cleaned
    from coterie.experiment.model_file import read_model_file
    from coterie.experiment.outputs import find_damage
    from coterie.report.page import marks_end

    described = read_model_file(run)
    if not described.weights or not marks_end(run):
        raise ConfigError(
            f"{run} is not finished, and could not be resumed without its checkpoints; resume it "
            f"first: coterie run --out {run} --resume"
        )
    with lock_folder(run):
        checkpoints, spool = run / _CHECKPOINTS, run / _SPOOL
        if damage := find_damage(run):
            remedy = "start again with another --out"
            if checkpoints.is_dir():
                remedy = (
                    "resume the run first, which writes it again from a checkpoint: "
                    f"coterie run --out {run} --resume"
                )
            raise CheckpointError(f"{damage}: {remedy}")
        cleaned.write(run)
        sizes = [*_list_sizes(spool)]
        _remove(spool)
        if checkpoints.is_dir():  # at once: an interrupt must not leave half of a checkpoint
            with disk_errors(checkpoints, remedy="; repeat when it can be removed"):
                rename(checkpoints, spool)
        for name in _FOLDERS:
            sizes += _list_sizes(run / name)
            _remove(run / name)
    freed = format_bytes(sum(sizes))
    typer.echo(f"{counted(len(sizes), 'file')} removed, {freed} freed in {run}")


def _list_sizes(folder: Path) -> Iterator[int]:
    """List the bytes of every file in a folder."""
    return (path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _remove(folder: Path) -> None:
    """Remove a folder, if it is there."""
    if not folder.is_dir():
        return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot remove {error.filename or folder}: {error.strerror}; repeat when it can be"
        ) from error
