"""`coterie clean`: remove what only resuming needs from a finished run."""

import shutil
from pathlib import Path

import typer

from coterie.cli.options import Debug, Run
from coterie.core.errors import CheckpointError, ConfigError
from coterie.core.formatting import counted, format_bytes

_FOLDERS = ("clients", "checkpoints", "blobs", "spool")


def clean(run: Run, debug: Debug = False) -> None:
    """Remove checkpoints and client states of a finished run; its models and results stay."""
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

    from coterie.engine.rundir import lock_folder

    with lock_folder(run):
        if damage := find_damage(run):
            raise CheckpointError(
                f"{damage}: resume the run first, which writes it again from a checkpoint: "
                f"coterie run --out {run} --resume"
            )
        cleaned.write(run)
        files, size = 0, 0
        for name in _FOLDERS:
            freed = _remove(run / name)
            files, size = files + freed[0], size + freed[1]
    typer.echo(f"{counted(files, 'file')} removed, {format_bytes(size)} freed in {run}")


def _remove(folder: Path) -> tuple[int, int]:
    """Remove a folder, if it is there; return how many files and bytes it had."""
    if not folder.is_dir():
        return 0, 0
    sizes = [path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()]
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot remove {error.filename or folder}: {error.strerror}; repeat when it can be"
        ) from error
    return len(sizes), sum(sizes)
